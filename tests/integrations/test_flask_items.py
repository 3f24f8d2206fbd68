"""The Flask example does what its README says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import flask
import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from support.patience import patient
from support.servers import RedisServer
from workstealing.recruiting import Recruiter

__all__ = ["patient"]

SOURCE = Path(__file__).parents[2] / "examples" / "flask_items" / "app.py"


@pytest.fixture
def example() -> ModuleType:
    """Load the example as a module."""
    spec = importlib.util.spec_from_file_location("flask_items_app", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def recruiter() -> Recruiter:
    """Return a recruiter without jobs: the example installs its own."""
    return Recruiter()


@pytest.fixture
def app(
    example: ModuleType, recruiter: Recruiter, redis7: RedisServer, tmp_path: Path
) -> flask.Flask:
    database = tmp_path / "items.sqlite"
    example.create_database(database)
    app: flask.Flask = example.create_app(redis7.client(), recruiter, database)
    return app


@pytest.fixture
def client(app: flask.Flask) -> FlaskClient:
    return app.test_client()


def get(client: FlaskClient, path: str, headers: dict[str, str] | None = None) -> TestResponse:
    """Run one request to its end, its close included."""
    return client.get(path, headers=headers, buffered=True)


def enlisted(recruiter: Recruiter) -> int:
    """Return how many have enlisted."""
    return recruiter.stats()["enlisted"]


def test_a_miss_a_hit_and_a_304(client: FlaskClient, recruiter: Recruiter) -> None:
    miss = get(client, "/item/17")
    assert miss.json == {
        "id": 17,
        "description": "The 17th thing",
        "price": "27.00",
        "stock": "3",
    }
    assert miss.headers["X-Cache"] == "miss"
    assert enlisted(recruiter) == 0

    hit = get(client, "/item/17")
    assert hit.json == miss.json
    assert hit.headers["X-Cache"] == "hit"
    assert enlisted(recruiter) == 1

    unchanged = get(client, "/item/17", {"If-None-Match": hit.headers["ETag"]})
    assert unchanged.status_code == 304
    assert unchanged.data == b""
    assert enlisted(recruiter) == 2

    missing = get(client, "/item/100000")
    assert missing.status_code == 404
    assert enlisted(recruiter) == 2


def test_a_hit_collects_another_items_garbage(
    example: ModuleType, redis7: RedisServer, tmp_path: Path
) -> None:
    database = tmp_path / "items.sqlite"
    example.create_database(database, items=3)
    recruiter = Recruiter(seconds=5.0)
    redis = redis7.client()
    app = example.create_app(redis, recruiter, database)
    recruiter.set_rate("hash_field_expiry.items", 1.0)
    client = app.test_client()
    for item in (1, 2):
        assert get(client, f"/item/{item}").headers["X-Cache"] == "miss"
    # Written by a clock that is two hours late, a part is overdue at once: nobody has to sleep.
    hashes = example.VolatileHashes(redis, namespace="items", clock_shift_ms=-7_200_000)
    hashes.hsetex("item:2", mapping={"stock": "0"}, ex=3600)
    assert redis.hlen("item:2") == 3
    assert get(client, "/item/1").headers["X-Cache"] == "hit"
    assert recruiter.stats()["jobs"]["hash_field_expiry.items"]["items"] == 1
    assert redis.hlen("item:2") == 2
    assert get(client, "/item/2").headers["X-Cache"] == "miss"
