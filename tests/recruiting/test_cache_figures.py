"""The figures of caches: bounded names, exact counts, and each listener's own share of them."""

from __future__ import annotations

import os
import threading

from workstealing.recruiting.cache_figures import (
    NAMES,
    OTHER_CACHES,
    CacheCounts,
    CacheFigures,
    Caches,
)


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
