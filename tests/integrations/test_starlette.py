"""The ASGI middleware in Starlette, by its test client and under a real uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from support.held_slices import PATIENCE, HeldSlices, until
from support.uvicorn_server import Served
from workstealing.integrations.asgi import WorkStealingMiddleware
from workstealing.recruiting import Recruiter


class Site:
    """An application with a page of each kind."""

    def __init__(self, events: list[object]) -> None:
        self.events = events
        self.endless_ended = asyncio.Event()

    def routes(self) -> list[Any]:
        return [
            Route("/", self.page),
            Route("/sync", self.sync_page),
            Route("/stream", self.stream),
            Route("/endless", self.endless),
            Route("/background", self.background),
            Route("/file", self.file),
            Route("/error", self.error),
            WebSocketRoute("/socket", self.socket),
        ]

    async def page(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("page", headers={"X-Cache": request.query_params.get("is", "")})

    def sync_page(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("sync")

    async def stream(self, request: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            for number in range(3):
                self.events.append(number)
                yield f"{number}\n"

        return StreamingResponse(lines())

    async def endless(self, request: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[str]:
            try:
                while True:
                    yield "more\n"
                    await asyncio.sleep(0)
            finally:
                self.endless_ended.set()

        return StreamingResponse(lines())

    async def background(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("on", background=BackgroundTask(self.events.append, "background"))

    async def file(self, request: Request) -> FileResponse:
        return FileResponse(__file__)

    async def error(self, request: Request) -> None:
        raise ValueError("mine")

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(await socket.receive_text())
        await socket.close()


@pytest.fixture
def site(events: list[object]) -> Site:
    return Site(events)


@pytest.fixture
def app(site: Site) -> Starlette:
    return Starlette(routes=site.routes())


@pytest.fixture
def held() -> Iterator[HeldSlices]:
    held = HeldSlices()
    yield held
    held.go.set()


def client(app: Any, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app, **options), base_url="http://test", timeout=PATIENCE
    )


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


@pytest.mark.parametrize("path", ["/", "/sync", "/stream", "/file", "/nowhere"])
async def test_every_kind_of_response_enlists(
    app: Starlette, recruiter: Recruiter, events: list[object], path: str
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with client(app) as web:
        assert (await web.get(path)).content
    assert enlisted(recruiter) == 1
    await until(lambda: "slice" in events)
    assert events == ([0, 1, 2, "slice"] if path == "/stream" else ["slice"])


async def test_background_tasks_come_first(
    app: Starlette, recruiter: Recruiter, events: list[object]
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with client(app) as web:
        assert (await web.get("/background")).text == "on"
    await until(lambda: "slice" in events)
    assert events == ["background", "slice"]


async def test_an_error_page_of_the_server_does_not_enlist(
    app: Starlette, recruiter: Recruiter
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with client(app, raise_app_exceptions=False) as web:
        assert (await web.get("/error")).status_code == 500
    assert enlisted(recruiter) == 0


async def test_when(app: Starlette, recruiter: Recruiter) -> None:
    app.add_middleware(
        WorkStealingMiddleware,
        recruiter=recruiter,
        when=lambda response: response.headers.get("X-Cache") == "hit",
    )
    async with client(app) as web:
        await web.get("/", params={"is": "miss"})
        assert enlisted(recruiter) == 0
        await web.get("/", params={"is": "hit"})
        assert enlisted(recruiter) == 1


async def test_middleware_twice_and_in_a_mounted_application(
    site: Site, recruiter: Recruiter
) -> None:
    inner = Starlette(routes=site.routes())
    inner.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    outer = Starlette(routes=[Mount("/inner", app=inner)])
    outer.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    outer.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with client(outer) as web:
        assert (await web.get("/inner/")).text == "page"
    assert enlisted(recruiter) == 1


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_decorated_endpoint_below_a_middleware_that_starts_tasks(
    recruiter: Recruiter, kind: str
) -> None:
    """BaseHTTPMiddleware runs the endpoint in another task, a plain function in a thread."""

    @recruiter.enlists(when=lambda response: response.status_code == 203)
    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("page", int(request.query_params["status"]))

    @recruiter.enlists(when=lambda response: response.status_code == 203)
    def plain(request: Request) -> PlainTextResponse:
        return PlainTextResponse("page", int(request.query_params["status"]))

    async def through(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    app = Starlette(routes=[Route("/", page if kind == "async" else plain)])
    app.add_middleware(BaseHTTPMiddleware, dispatch=through)
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter, when=lambda _: False)
    async with client(app) as web:
        await web.get("/", params={"status": 200})
        assert enlisted(recruiter) == 0
        await web.get("/", params={"status": 203})
        assert enlisted(recruiter) == 1


async def converse(app: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> list[str]:
    """Send an application these messages; return the kinds of its answers."""
    received, answers = iter(messages), []

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        answers.append(message["type"])

    await app(scope, receive, send)
    return answers


async def test_websockets_and_lifespan(site: Site, recruiter: Recruiter) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        site.events.append("up")
        yield
        site.events.append("down")

    app = Starlette(routes=site.routes(), lifespan=lifespan)
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    socket = {"type": "websocket", "path": "/socket", "headers": [], "query_string": b""}
    said = {"type": "websocket.receive", "text": "hello"}
    assert await converse(app, socket, {"type": "websocket.connect"}, said) == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]
    turns = ("startup", "shutdown")
    assert await converse(
        app, {"type": "lifespan"}, *({"type": f"lifespan.{turn}"} for turn in turns)
    ) == [f"lifespan.{turn}.complete" for turn in turns]
    assert site.events == ["up", "down"]
    assert enlisted(recruiter) == 0


@pytest.mark.parametrize("path", ["/", "/stream", "/sync"])
async def test_under_uvicorn_nobody_waits_for_a_slice(
    app: Starlette, held: HeldSlices, path: str
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=held.recruiter)
    async with Served(app) as served, served.client() as web:
        assert (await web.get(path)).status_code == 200
        await until(held.begun.is_set)
        # The same keep-alive connection, while the slice lasts.
        assert (await web.get("/")).text == "page"
        async with served.client() as another:
            assert (await another.get("/")).text == "page"
        assert held.worked == 0
        held.go.set()
        await until(lambda: held.worked)
    assert held.enlisted == 3


async def test_under_uvicorn_even_a_client_of_http_1_0_does_not_wait(
    app: Starlette, held: HeldSlices
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=held.recruiter)
    async with Served(app) as served:
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(b"GET /stream HTTP/1.0\r\n\r\n")
        async with asyncio.timeout(PATIENCE):
            assert (await reader.read()).endswith(b"2\n")
        writer.close()
        await until(held.begun.is_set)
        assert held.worked == 0
        held.go.set()


async def test_under_uvicorn_a_client_that_leaves_harms_nothing(
    app: Starlette, site: Site, recruiter: Recruiter
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with Served(app) as served, served.client() as web:
        async with web.stream("GET", "/endless") as response:
            assert await anext(response.aiter_raw())
        async with asyncio.timeout(PATIENCE):
            await site.endless_ended.wait()
        assert enlisted(recruiter) == 0
        assert (await web.get("/")).text == "page"
        await until(lambda: enlisted(recruiter) == 1)
