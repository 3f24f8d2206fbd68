"""aiohttp has no ASGI; its handlers take the decorator, under its real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from support.held_slices import HeldSlices, until


@pytest.fixture
def held() -> Iterator[HeldSlices]:
    held = HeldSlices()
    yield held
    held.go.set()


def serve(held: HeldSlices) -> TestClient[web.Request, web.Application]:
    app = web.Application()
    enlists = held.recruiter.enlists

    @enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
    async def page(request: web.Request) -> web.Response:
        if "error" in request.query:
            raise web.HTTPNotFound
        return web.Response(text="page", headers={"X-Cache": request.query.get("is", "miss")})

    @enlists
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(3):
            await response.write(f"{number}\n".encode())
        await response.write_eof()
        return response

    class View(web.View):
        @enlists
        async def get(self) -> web.Response:
            return web.Response(text="view")

    app.router.add_get("/", page)
    app.router.add_get("/stream", stream)
    app.router.add_view("/view", View)
    return TestClient(TestServer(app))


@pytest.mark.parametrize(
    ("path", "text"), [("/?is=hit", "page"), ("/stream", "0\n1\n2\n"), ("/view", "view")]
)
async def test_no_client_waits_for_a_slice(held: HeldSlices, path: str, text: str) -> None:
    async with serve(held) as client:
        assert await (await client.get(path)).text() == text
        await until(held.begun.is_set)
        # Others, on the same connection and on a new one, while the slice lasts.
        assert await (await client.get(path)).text() == text
        async with ClientSession() as another, another.get(client.make_url(path)) as response:
            assert await response.text() == text
        assert held.worked == 0
        held.go.set()
        await until(lambda: held.worked)
    assert held.enlisted == 3


async def test_when_and_errors(held: HeldSlices) -> None:
    async with serve(held) as client:
        assert (await client.get("/?is=miss")).status == 200
        assert (await client.get("/?error=1")).status == 404
    assert held.enlisted == 0
