"""FastAPI: the middleware, and decorated path operations with its dependency injection."""

from __future__ import annotations

from typing import Annotated

import httpx
import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, HTTPException, Response
from pydantic import BaseModel

from support.held_slices import HeldSlices, until
from workstealing.integrations.asgi import WorkStealingMiddleware
from workstealing.recruiting import Recruiter


class Item(BaseModel):
    """What a page says about an item."""

    name: str
    price: float


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


def enlisted(recruiter: Recruiter) -> int:
    return recruiter.stats()["enlisted"]


def currency() -> str:
    return "EUR"


@pytest.fixture
def app(recruiter: Recruiter, events: list[object]) -> FastAPI:
    app = FastAPI()

    @app.get("/item/{item}")
    @recruiter.enlists(when=lambda response: response.headers.get("X-Cache") == "hit")
    async def page(
        item: int,
        response: Response,
        money: Annotated[str, Depends(currency)],
        cached: bool = False,
    ) -> Item:
        if item > 100:
            raise HTTPException(404)
        response.headers["X-Cache"] = "hit" if cached else "miss"
        return Item(name=f"{item} {money}", price=2.5)

    @app.post("/item")
    @recruiter.enlists
    def add(item: Item, background: BackgroundTasks) -> dict[str, str]:
        background.add_task(events.append, "background")
        return {"added": item.name}

    @app.get("/plain")
    async def plain() -> str:
        return "plain"

    return app


async def test_decorated_operations_decide_for_themselves(
    app: FastAPI, recruiter: Recruiter, events: list[object]
) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter, when=lambda _: False)
    async with client(app) as web:
        found = await web.get("/item/17")
        assert found.json() == {"name": "17 EUR", "price": 2.5}
        assert (await web.get("/item/x")).status_code == 422
        assert (await web.get("/item/101")).status_code == 404
        assert (await web.get("/plain")).json() == "plain"
        assert enlisted(recruiter) == 0
        assert (await web.get("/item/17", params={"cached": True})).headers["X-Cache"] == "hit"
        assert enlisted(recruiter) == 1
        await until(lambda: events)
        events.clear()
        assert (await web.post("/item", json={"name": "a", "price": 1})).json() == {"added": "a"}
        assert enlisted(recruiter) == 2
        await until(lambda: "slice" in events)
        assert events == ["background", "slice"]


async def test_every_request(app: FastAPI, recruiter: Recruiter) -> None:
    app.add_middleware(WorkStealingMiddleware, recruiter=recruiter)
    async with client(app) as web:
        await web.get("/plain")
        await web.get("/nowhere")
    assert enlisted(recruiter) == 2


async def test_the_decorator_alone_blocks_no_loop() -> None:
    held = HeldSlices()
    app = FastAPI()

    @app.get("/")
    @held.recruiter.enlists(when=lambda result: result == "hit")
    async def page() -> str:
        return "hit"

    async with client(app) as web:
        for _ in range(3):
            assert (await web.get("/")).json() == "hit"
        await until(held.begun.is_set)
        assert held.worked == 0
        held.go.set()
        await until(lambda: held.worked)
    assert held.enlisted == 3


def test_the_schema_is_the_functions_own(app: FastAPI) -> None:
    operation = app.openapi()["paths"]["/item/{item}"]["get"]
    assert [each["name"] for each in operation["parameters"]] == ["item", "cached"]
    assert operation["operationId"].startswith("page_")
