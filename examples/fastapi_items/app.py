"""Item pages in FastAPI, from a cache that the pages' own fast exits keep clean.

Each item is one hash with three parts, and each part has its own time to live. Pages read it by an
asyncio client. A hit enlists after its response has gone out; three in a thousand are recruited to
remove a few expired parts of other items, in a thread, so that the event loop never stands still.

Run it from the checkout: `.venv/bin/python examples/fastapi_items/app.py`
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from socket import socket

import uvicorn
from fastapi import FastAPI, HTTPException, Response

from workstealing import Recruiter, connect
from workstealing.integrations.asgi import WorkStealingMiddleware
from workstealing.jobs import HashFieldExpiry
from workstealing.store import EmbeddedServer, connect_async
from workstealing.structures import AsyncVolatileHashes, VolatileHashes

ITEMS = 1_000
# Seconds to live, by part.
TTLS = {"description": 12 * 3600, "price": 3600, "stock": 5 * 60}


def create_app(url: str, recruiter: Recruiter, ttls: Mapping[str, int] = TTLS) -> FastAPI:
    """Return the app.

    Arguments:
        url: of Redis.
        recruiter: where the job is installed.
        ttls: seconds to live by part.
    """
    client = connect_async(url)
    items = AsyncVolatileHashes(client, namespace="items")
    # A slice runs in a thread, so its job has a blocking client.
    recruiter.install(HashFieldExpiry(VolatileHashes(connect(url), namespace="items")), rate=0.003)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)
    # Only the decorated pages enlist.
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter, when=lambda _: False)

    @app.get("/item/{item}")
    @recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
    async def page(item: int, response: Response) -> dict[str, str]:
        if not 1 <= item <= ITEMS:
            raise HTTPException(404)
        key = f"item:{item}"
        cached = await items.hmget(key, list(ttls))
        parts = {
            part: value.decode()
            for part, value in zip(ttls, cached, strict=True)
            if value is not None
        }
        missing = [part for part in ttls if part not in parts]
        for part in missing:
            parts[part] = look_up(item, part)
            await items.hsetex(key, mapping={part: parts[part]}, ex=ttls[part])
        response.headers["X-Cache"] = "miss" if missing else "hit"
        return {part: parts[part] for part in ttls}

    @app.get("/figures")
    async def figures() -> object:
        return recruiter.stats()

    return app


def look_up(item: int, part: str) -> str:
    """Return a part of an item as the shop's database would."""
    return {
        "description": f"The {item}th thing",
        "price": f"{item % 90 + 10}.00",
        "stock": str(item % 7),
    }[part]


@contextmanager
def redis_url() -> Iterator[str]:
    """Yield REDIS_URL, or the URL of a throw-away Redis."""
    if given := os.environ.get("REDIS_URL"):
        yield given
        return
    with EmbeddedServer() as server:
        yield server.url


class TellingServer(uvicorn.Server):
    """A server that tells its address when it serves: from then on Ctrl-C ends it in good order."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets=sockets)
        for each in sockets or ():
            address = f"http://127.0.0.1:{each.getsockname()[1]}"
            print(f"curl -i {address}/item/17     # X-Cache: miss, then hit", flush=True)
            print(f"curl {address}/figures        # who enlisted, who was recruited", flush=True)


def main() -> None:
    """Serve on a free port, or on PORT, until Ctrl+C."""
    with redis_url() as url:
        port = int(os.environ.get("PORT", "0"))
        config = uvicorn.Config(create_app(url, Recruiter()), port=port, log_level="warning")
        # uvicorn stops in good order, and then raises it anew.
        with suppress(KeyboardInterrupt):
            TellingServer(config).run(sockets=[config.bind_socket()])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
