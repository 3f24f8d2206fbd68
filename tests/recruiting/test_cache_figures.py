"""The figures of caches: bounded names, exact counts, and each listener's own share of them."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest

from workstealing.recruiting import cache_figures
from workstealing.recruiting.cache_figures import (
    NAMES,
    OTHER_CACHES,
    CacheCounts,
    CacheFigures,
    Caches,
    Listeners,
)
from workstealing.testing import ManualClock


def test_a_cache_that_nobody_calls_has_no_figures() -> None:
    caches = Caches()
    caches.of("page")
    assert caches.stats() == {}
    caches.of("page").hit()
    assert caches.stats() == {
        "page": {
            "hits": 1,
            "stale": 0,
            "misses": 0,
            "waits": 0,
            "computations": 0,
            "failures": 0,
            "uncached": 0,
            "seconds": 0.0,
        }
    }


def test_a_hundred_names_and_one_for_all_others() -> None:
    caches = Caches()
    for number in range(NAMES + 50):
        caches.of(f"page {number}").hit()
    assert len(caches.stats()) == NAMES + 1
    assert caches.stats()[OTHER_CACHES]["hits"] == 50
    caches.of("x" * 500).miss()
    assert caches.stats()[OTHER_CACHES]["misses"] == 1


def test_no_count_of_many_threads_is_lost() -> None:
    figures, gate = CacheFigures(), threading.Barrier(8)

    def count() -> None:
        gate.wait()
        for _ in range(20_000):
            figures.hit()
            figures.miss(2)
            figures.compute(0.5)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (figures.hits, figures.misses, figures.computations) == (160_000, 320_000, 160_000)
    assert figures.seconds == 80_000.0


def test_each_listener_takes_each_count_once() -> None:
    caches = Caches()
    one, other = CacheCounts(caches), CacheCounts(caches)
    assert one.take() == {}
    caches.of("page").hit(3)
    caches.of("page").compute(0.5)
    assert one.take()["page"]["hits"] == 3
    assert one.take() == {}
    caches.of("page").hit(2)
    assert one.take() == {
        "page": {
            "hits": 2,
            "stale": 0,
            "misses": 0,
            "waits": 0,
            "computations": 0,
            "failures": 0,
            "uncached": 0,
            "seconds": 0.0,
        }
    }
    taken = other.take()["page"]
    assert (taken["hits"], taken["computations"], taken["seconds"]) == (5, 1, 0.5)


def test_takers_at_once_take_each_count_once() -> None:
    caches = Caches()
    counts, gate, taken = CacheCounts(caches), threading.Barrier(8), []

    def take() -> None:
        gate.wait()
        for _ in range(2_000):
            caches.of("page").hit()
            taken.append(counts.take().get("page", {}).get("hits", 0))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    taken.append(counts.take().get("page", {}).get("hits", 0))
    assert sum(taken) == 16_000


def test_a_forked_child_begins_anew() -> None:
    caches = Caches()
    counts = CacheCounts(caches)
    caches.of("page").hit(5)
    counts.take()
    figures = caches.of("page")
    pid = os.fork()
    if pid == 0:
        caches.after_fork()
        figures.hit()
        right = counts.take()["page"]["hits"] == 1 and caches.stats()["page"]["hits"] == 1
        os._exit(0 if right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert caches.stats()["page"]["hits"] == 5


class Hook:
    """A listener that notes what it hears."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.heard: list[int] = []
        self.error = error

    def on_enlisted(self, count: int) -> None:
        self.heard.append(count)
        if self.error is not None:
            raise self.error


def test_listeners_hear_of_calls_once_a_second() -> None:
    clock = ManualClock(100.0)
    listeners, hook = Listeners(clock), Hook()
    listeners.tell()
    listeners.add(hook)
    for seconds in (0.0, 0.5, 0.25, 0.25, 0.999, 0.001, 0.0):
        clock.advance(seconds)
        listeners.tell()
    # They are no enlists.
    assert hook.heard == [0, 0, 0]


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(100.0)
    listeners, bad, good = Listeners(clock), Hook(OSError("disk full")), Hook()
    for each in (bad, good):
        listeners.add(each)
    listeners.tell()
    assert (bad.heard, good.heard) == ([0], [0])
    assert "disk full" in caplog.text
    bad.error = KeyboardInterrupt()
    clock.advance(1.0)
    with pytest.raises(KeyboardInterrupt):
        listeners.tell()


@pytest.mark.slow
def test_a_listener_is_held_weakly() -> None:
    listeners, hook = Listeners(ManualClock(100.0)), Hook()
    listeners.add(hook)
    alive = weakref.ref(hook)
    del hook
    gc.collect()
    assert alive() is None
    listeners.tell()


@pytest.mark.parametrize("count", ["hit", "old", "miss"])
def test_each_look_tells(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    listeners, hook = Listeners(ManualClock(100.0)), Hook()
    listeners.add(hook)
    monkeypatch.setattr(cache_figures, "LISTENERS", listeners)
    getattr(CacheFigures(), count)()
    assert hook.heard == [0]
