"""A pytest plugin: the test fails that leaves threads or children running.

One that still writes when its test is over fails another test, somewhere else and later. A plugin,
since a conftest's hooks hear nothing of fixtures that live as long as the session. Imported too
early for pytest to rewrite its assertions, it has none: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 60.0
"""How long something may take that is ending when its test is over."""
POLL_SECONDS = 0.01
_TASKS = Path("/proc/self/task")


def _threads_and_children() -> set[Hashable]:
    """Return the threads and the ids of the children of this process, without those it shares."""
    threads = (thread for thread in threading.enumerate() if not _is_shared(thread))
    return {*threads, *_children()}


def _described(some: Iterable[Hashable]) -> list[str]:
    """Return words for each thread and child, unless it can do no harm."""
    found = []
    for each in some:
        if isinstance(each, threading.Thread):
            found.append(f"the thread {each.name!r}")
            continue
        # One that ends meanwhile, or has ended and was not waited for, can do no harm.
        with suppress(OSError):
            folder = Path("/proc", str(each))
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                # One serves a process for good, from the first time that multiprocessing needs it.
                if "multiprocessing.resource_tracker" not in command:
                    found.append(f"the process {each}: {command.strip()[:200]}")
    return found


def _is_shared(thread: threading.Thread) -> bool:
    """Say whether it may outlive a test.

    A connection from Spark's JVM and playwright's loop serve several; our own threads are daemons
    that end in their time, for instance when a database answers at last.
    """
    of = getattr(getattr(thread, "_target", None), "__self__", None)
    is_sparks = type(of).__module__.startswith("py4j.")
    return is_sparks or thread.name.startswith(("asyncio_", "workstealing-"))


def _children() -> Iterator[str]:
    for task in os.listdir(_TASKS):  # noqa: PTH208 - a few microseconds in each of many tests
        with suppress(OSError):
            yield from (_TASKS / task / "children").read_text().split()


# What ran before this test, or was started by what tests share.
_known: set[Hashable] = set()


def replaced(old: int, new: int) -> None:
    """Let a child take the place of another one, by their ids: known if that was known."""
    if str(old) in _known:
        _known.add(str(new))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """See what runs before a test."""
    _known.clear()
    _known.update(_threads_and_children())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Let whatever several tests share outlive each of them."""
    if fixturedef.scope == "function":
        return (yield)
    before = _threads_and_children()
    try:
        return (yield)
    finally:
        _known.update(_threads_and_children() - before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Wait until only what is known runs, and fail if something else runs on."""
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    # Only what is new is looked at: a look at each child at each test costs a second in a hundred.
    while left := _described(_threads_and_children() - _known):
        if time.monotonic() > deadline:
            pytest.fail(f"this test is over, but not {', nor '.join(left)}")
        time.sleep(POLL_SECONDS)
