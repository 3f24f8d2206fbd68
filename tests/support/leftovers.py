"""A pytest plugin: the test fails that leaves threads or children running.

One that still writes when its test is over fails another test, somewhere else and later. A plugin,
since a conftest's hooks hear nothing of fixtures that live as long as the session. Imported too
early for pytest to rewrite its assertions, it has none: PYTEST_DONT_REWRITE.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PATIENCE_SECONDS = 60.0
"""How long something may take that is ending when its test is over."""
POLL_SECONDS = 0.01
_TASKS = Path("/proc/self/task")


def running() -> dict[Hashable, str]:
    """Return the threads and children of this process, each with words that describe it."""
    found: dict[Hashable, str] = {
        thread: f"the thread {thread.name!r}"
        for thread in threading.enumerate()
        if not _is_shared(thread)
    }
    for pid in _children():
        # One that ends meanwhile, or has ended and was not waited for, can do no harm.
        with suppress(OSError):
            folder = Path("/proc", pid)
            if (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                # One serves a process for good, from the first time that multiprocessing needs it.
                if "multiprocessing.resource_tracker" not in command:
                    found[pid] = f"the process {pid}: {command.strip()[:200]}"
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
_known: dict[Hashable, str] = {}


def replaced(old: int, new: int) -> None:
    """Let a child take the place of another one, by their ids: known if that was known."""
    if str(old) in _known:
        _known[str(new)] = f"the process {new}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    """See what runs before a test."""
    _known.clear()
    _known.update(running())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Let whatever several tests share outlive each of them."""
    if fixturedef.scope == "function":
        return (yield)
    before = running()
    try:
        return (yield)
    finally:
        _known.update({each: said for each, said in running().items() if each not in before})


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Wait until only what is known runs, and fail if something else runs on."""
    yield
    deadline = time.monotonic() + PATIENCE_SECONDS
    while left := [said for each, said in running().items() if each not in _known]:
        if time.monotonic() > deadline:
            pytest.fail(f"this test is over, but not {', nor '.join(left)}")
        time.sleep(POLL_SECONDS)
