"""A pytest plugin that runs Flask-Caching's own tests on our backend, in a process of its own.

`python -m pytest -p support.flask_caching_suite FILES` with SUITE_URL, the URL of a Redis, and
SUITE_RESULTS, the file that gets a JSON object: each test, and how it ended. Apps that take the
simple cache, and tests that make a Redis one, get ours.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from flask_caching import backends

from workstealing.integrations.flask_caching import VolatileHashCache
from workstealing.structures import VolatileHashes

_numbers = itertools.count()
_found: dict[str, str] = {}
_made: list[VolatileHashCache] = []
# Their own fixtures start servers by it.
sys.modules["xprocess"] = types.ModuleType("xprocess")
sys.modules["xprocess"].ProcessStarter = object  # type: ignore[attr-defined]


class Ours(VolatileHashCache):
    """Our backend, made as theirs are: by a factory, or from a client of Redis and options."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return it for a call that makes a Redis one."""
        # Where its Redis is.
        for name in ("host", "port", "db", "password"):
            options.pop(name, None)
        return cls.factory(None, {"CACHE_KEY_PREFIX": options.pop("key_prefix", "")}, [], options)

    @classmethod
    def factory(cls, app: Any, config: Any, args: Any, kwargs: Any) -> Any:
        """Make one in a namespace of its own, as a simple cache is an object of its own."""
        given = {**config, "CACHE_REDIS_URL": os.environ["SUITE_URL"]}
        # Of the simple cache.
        kwargs = {key: value for key, value in kwargs.items() if key != "threshold"}
        own = {"namespace": f"suite{next(_numbers)}", "rate": 0, "backend": "emulated"}
        made = VolatileHashCache.factory(app, given, args, {**own, **kwargs})
        _made.append(made)
        return made


backends.SimpleCache = backends.RedisCache = Ours  # type: ignore[misc]


@pytest.fixture(scope="session")
def xprocess() -> None:
    """Stand in for the plugin of this name."""


class _Clock:
    """Theirs moves the time of caches in memory; this one that of our hashes, too."""

    def __init__(self, theirs: Any) -> None:
        self._advance, self._ahead = theirs.advance, 0.0
        theirs.advance = self.advance

    def advance(self, seconds: float) -> None:
        self._advance(seconds)
        self._ahead += seconds
        for each in _made:
            old = each.entries.hashes
            each.entries.hashes = VolatileHashes(
                old.client,
                old.namespace,
                backend="emulated",
                clock_shift_ms=round(1000 * self._ahead),
            )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """Start no server, because ours is there; and let our time pass with theirs."""
    if fixturedef.argname == "redis_server":
        fixturedef.func = lambda xprocess: None
    made = yield
    if fixturedef.argname == "clock":
        _Clock(made)
    return made


def pytest_runtest_logreport(report: Any) -> None:
    """Note how a test ended."""
    name = report.nodeid.split("/")[-1]
    if report.failed:
        _found[name] = f"failed: {report.longreprtext[-300:]}"
    elif report.skipped:
        _found.setdefault(name, "skipped")
    elif report.when == "call":
        _found.setdefault(name, "passed")


def pytest_sessionfinish() -> None:
    """Write the outcomes."""
    Path(os.environ["SUITE_RESULTS"]).write_text(json.dumps(_found))
