"""Server-sent events: their form, their bounds, and the places that they take."""

from __future__ import annotations

import datetime as dt
import json
from itertools import count
from typing import Any

import flask
import pytest

from support.dashboards import HOSTILE, make_app
from workstealing import Recruiter
from workstealing.dashboard import Streams
from workstealing.errors import ConfigurationError

MANY = {"wsgi.multithread": True}


def parsed(stream: bytes) -> list[Any]:
    """Read a stream as a browser does: blocks, fields, data."""
    blocks = stream.decode().split("\n\n")
    assert blocks.pop() == ""
    data = []
    for block in blocks:
        fields = [line.partition(": ") for line in block.split("\n")]
        assert [name for name, _, _ in fields] in (["retry"], ["data"])
        data += [json.loads(value) for name, _, value in fields if name == "data"]
    return data


def test_a_stream_goes_on_for_as_long_as_it_lasts() -> None:
    pauses: list[float] = []
    streams = Streams(every=2.0, lasts=10.0, pause=pauses.append)
    numbers = count()
    assert parsed(b"".join(streams.events(lambda: next(numbers)))) == [0, 1, 2, 3, 4]
    assert pauses == [2.0] * 4


def test_a_worker_with_one_thread_is_not_held() -> None:
    streams = Streams(pause=lambda seconds: pytest.fail("it waited"))
    assert parsed(b"".join(streams.events(lambda: "now", many=False))) == ["now"]


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_no_name_ends_an_event(name: str) -> None:
    streams = Streams(every=1, lasts=1)
    assert parsed(b"".join(streams.events(lambda: {"name": name}))) == [{"name": name}]


@pytest.fixture
def app(never_recruiter: Recruiter, client: Any) -> flask.Flask:
    """A dashboard with two places for streams, which never wait."""
    streams = Streams(every=1.0, lasts=3.0, most=2, pause=lambda seconds: None)
    return make_app(never_recruiter, client, streams=streams)


def test_the_view_is_a_stream_of_pages(app: flask.Flask) -> None:
    answer = app.test_client().get("/ws/events", environ_overrides=MANY)
    assert answer.mimetype == "text/event-stream"
    assert answer.headers["X-Accel-Buffering"] == "no"
    pages = parsed(answer.data)
    assert len(pages) == 3
    assert pages[0]["role"] == "viewer"
    single = app.test_client().get("/ws/events", environ_overrides={"wsgi.multithread": False})
    assert len(parsed(single.data)) == 1


def test_a_process_has_a_bounded_number_of_streams(app: flask.Flask) -> None:
    browser = app.test_client()
    # Both are held open, the second one before anything of it was read.
    first = browser.get("/ws/events", environ_overrides=MANY, buffered=False)
    assert next(iter(first.response))
    second = browser.get("/ws/events", environ_overrides=MANY, buffered=False)
    refused = browser.get("/ws/events", environ_overrides=MANY)
    assert refused.status_code == 503
    second.close()
    third = browser.get("/ws/events", environ_overrides=MANY, buffered=False)
    assert third.status_code == 200
    # A browser that goes away gives its place back; a second end changes nothing.
    first.close()
    first.close()
    third.close()
    for _ in range(5):
        answer = browser.get("/ws/events", environ_overrides=MANY)
        assert answer.status_code == 200
        answer.close()


def test_a_streams_times_are_seconds_or_timedeltas() -> None:
    pauses: list[float] = []
    streams = Streams(
        every=dt.timedelta(seconds=2), lasts=dt.timedelta(seconds=6), pause=pauses.append
    )
    assert len(list(streams.events(dict))) == 4  # the first one says when to come back
    assert pauses == [2.0, 2.0]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"every": 0}, {"every": True}, {"lasts": -1}, {"lasts": "5"}, {"lasts": float("nan")}),
        *({"most": 0}, {"most": 2.5}),
    ],
)
def test_bounds_that_bound_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="give a number"):
        Streams(**wrong)
