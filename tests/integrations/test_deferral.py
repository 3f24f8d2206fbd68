"""One request's enlist, put off: who governs it, and when it happens."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from workstealing.recruiting import Recruiter
from workstealing.recruiting import deferral as module
from workstealing.recruiting.deferral import Deferral, current, defer
from workstealing.recruiting.faults import FaultLog
from workstealing.testing import ManualClock, always


class Note:
    """An enlister that notes its name."""

    def __init__(self, name: str, events: list[object]) -> None:
        self.name = name
        self.events = events

    def enlist(self) -> None:
        """Note that it was asked."""
        self.events.append(self.name)


def test_default_enlists_once_at_close(recruiter: Recruiter, events: list[object]) -> None:
    deferral = Deferral(recruiter)
    deferral.respond("response")
    assert events == []
    deferral.close()
    deferral.close()
    assert events == ["slice"]
    assert recruiter.stats()["enlisted"] == 1


def test_last_offer_governs(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    assert deferral.offer(Note("inner", events))
    assert deferral.offer(Note("outer", events), None)
    deferral.respond("response")
    deferral.close()
    assert events == ["outer"]


def test_offer_overrules_a_default_that_would_enlist(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    deferral.offer(Note("handler", events), lambda response: False)
    deferral.respond("response")
    deferral.close()
    assert events == []


def test_offer_overrules_a_default_that_would_not(events: list[object]) -> None:
    deferral = Deferral(Note("default", events), lambda response: False)
    deferral.offer(Note("handler", events))
    deferral.respond("response")
    deferral.close()
    assert events == ["handler"]


def test_when_is_asked_once_and_at_once(events: list[object]) -> None:
    asked: list[object] = []

    def when(response: object) -> bool:
        asked.append(response)
        return True

    deferral = Deferral(Note("default", events), when)
    deferral.respond("page")
    assert asked == ["page"]
    deferral.close()
    assert asked == ["page"]
    assert events == ["default"]


def test_a_later_response_replaces_an_earlier_one(events: list[object]) -> None:
    deferral = Deferral(Note("default", events), lambda response: response == "page")
    deferral.respond("page")
    deferral.respond("error page")
    deferral.close()
    assert events == []


def test_an_offer_after_the_response_is_asked_about_it(events: list[object]) -> None:
    asked: list[object] = []
    deferral = Deferral(Note("default", events))
    deferral.respond("page")
    deferral.offer(Note("stream", events), asked.append)
    deferral.close()
    assert asked == ["page"]
    assert events == []


def test_no_response_no_enlist(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    deferral.close()
    assert events == []


def test_drop_ends_it(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    deferral.respond("page")
    deferral.drop()
    deferral.close()
    assert events == []
    assert deferral.closed


def test_a_closed_deferral_takes_no_offer(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    deferral.respond("page")
    deferral.close()
    deferral.respond("another page")
    assert not deferral.offer(Note("late", events))
    deferral.close()
    assert events == ["default"]


def test_defer_without_an_integration() -> None:
    assert current.get() is None
    assert not defer(Note("nobody", []))


def test_defer_finds_the_request_and_not_one_that_is_over(events: list[object]) -> None:
    deferral = Deferral(Note("default", events))
    token = current.set(deferral)
    try:
        assert defer(Note("handler", events))
        copied = contextvars.copy_context()
    finally:
        current.reset(token)
    deferral.respond("page")
    deferral.close()
    assert not copied.run(defer, Note("late thread", events))
    assert events == ["handler"]


def test_the_slice_finds_no_request(events: list[object]) -> None:
    class Nosy:
        def enlist(self) -> None:
            events.append(defer(Note("inner", events)))

    deferral = Deferral(Nosy())
    token = current.set(deferral)
    try:
        deferral.respond("page")
        deferral.close()
    finally:
        current.reset(token)
    assert events == [False]


def test_a_when_that_raises_is_logged_and_means_no(
    events: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(0.0)
    monkeypatch.setattr(module, "when_faults", FaultLog(clock))

    def request() -> None:
        deferral = Deferral(Note("default", events), lambda response: response.nonsense)
        deferral.respond("page")
        deferral.close()

    with caplog.at_level(logging.ERROR, logger="workstealing"):
        for _ in range(3):
            request()
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is not None
        clock.advance(60.0)
        request()
    assert events == []
    assert len(caplog.records) == 2
    assert "failed 3 times" in caplog.records[1].getMessage()


def test_a_when_may_end_the_process(events: list[object]) -> None:
    def when(response: object) -> bool:
        raise SystemExit(3)

    deferral = Deferral(Note("default", events), when)
    with pytest.raises(SystemExit):
        deferral.respond("page")
    deferral.close()
    assert events == []


@pytest.mark.parametrize("kind", ["plain", "generator", "coroutine", "async_generator"])
def test_a_function_of_any_kind_that_raises_takes_its_offer_back(kind: str) -> None:
    recruiter = always()

    @recruiter.enlists
    def plain() -> None:
        raise ValueError

    @recruiter.enlists
    def generator() -> Iterator[int]:
        yield 1
        raise ValueError

    @recruiter.enlists
    async def coroutine() -> None:
        raise ValueError

    @recruiter.enlists
    async def async_generator() -> AsyncIterator[int]:
        yield 1
        raise ValueError

    async def drained() -> None:
        async for _ in async_generator():
            pass

    calls: dict[str, Callable[[], object]] = {
        "plain": plain,
        "generator": lambda: list(generator()),
        "coroutine": lambda: asyncio.run(coroutine()),
        "async_generator": lambda: asyncio.run(drained()),
    }
    deferral = Deferral(recruiter)
    token = current.set(deferral)
    try:
        with pytest.raises(ValueError):  # noqa: PT011 - it is this test's own
            calls[kind]()
    finally:
        current.reset(token)
    deferral.respond("the error page")
    deferral.close()
    assert recruiter.stats()["enlisted"] == 0
