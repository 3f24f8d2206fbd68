"""The client of a process: made once from plain settings, anew in a child, never shown."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.errors import ConfigurationError
from workstealing.spark import making
from workstealing.spark.making import ClientSettings

made: list[object] = []


def make() -> Any:
    """Stand for a user's own function; what it makes is only told apart."""
    made.append(object())
    return made[-1]


@pytest.fixture(autouse=True)
def _no_clients_of_other_tests() -> Iterator[None]:
    making._clients.clear()
    made.clear()
    yield
    making._clients.clear()


MAKE = ClientSettings(f"{__name__}:make")


def test_one_process_has_one_client_of_equal_settings() -> None:
    again = pickle.loads(pickle.dumps(MAKE))
    assert MAKE.connected() is again.connected()
    assert len(made) == 1


def test_threads_that_begin_together_share_one_client() -> None:
    barrier, found = threading.Barrier(8), []

    def connect() -> None:
        barrier.wait()
        found.append(MAKE.connected())

    threads = [threading.Thread(target=connect) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == len(made) == 1


slow = threading.Event()


def make_slowly() -> Any:
    """Take as long as the test wants."""
    assert slow.wait(120)
    return make()


def test_one_that_takes_long_to_make_holds_up_nobody_who_needs_another() -> None:
    slow.clear()
    slowly = ClientSettings(f"{__name__}:make_slowly")
    thread = threading.Thread(target=slowly.connected)
    thread.start()
    try:
        assert MAKE.connected() is made[0]
        child = os.fork()
        if child == 0:
            slow.set()
            os._exit(0 if slowly.connected() is made[-1] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        slow.set()
        thread.join()
    assert slowly.connected() is made[-1]


def test_a_child_of_fork_makes_its_own_client() -> None:
    mine = MAKE.connected()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        is_other = MAKE.connected() is not mine and MAKE.connected() is made[-1]
        os.write(writing, b"other" if is_other else b"same")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"other"
    os.waitpid(child, 0)
    assert MAKE.connected() is mine


def test_a_child_that_was_forked_while_a_client_was_made_is_not_locked() -> None:
    with making._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if making._lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_default_reads_the_environment_and_a_url_goes_before_it(
    redis7: RedisServer, redis8: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    redis7.client().set("who", "seven")
    redis8.client().set("who", "eight")
    by_default, by_url = ClientSettings().connected(), ClientSettings(url=redis8.url).connected()
    assert by_default.get("who") == b"seven"
    assert by_url.get("who") == b"eight"
    by_default.close()
    by_url.close()


def test_a_client_and_a_url_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="both a client and a url") as caught:
        ClientSettings("module:make", "redis://:secret@host")
    assert "secret" not in str(caught.value)


def test_a_url_is_never_shown() -> None:
    settings = ClientSettings(url="redis://:secret@host")
    assert "secret" not in f"{settings!r} {settings} {[settings]}"
