"""An application under a real uvicorn, inside the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Self

import httpx
import uvicorn

from support.held_slices import PATIENCE, until


class Served:
    """An application under uvicorn on a free loopback port; use it by `async with`."""

    def __init__(self, app: Any) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        # Tests end the server by its flag, not by a signal.
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        await until(lambda: self._server.started)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        await self._task

    def client(self) -> httpx.AsyncClient:
        """Return a client of this server; use it by `async with`."""
        host, port = self.address
        return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE)
