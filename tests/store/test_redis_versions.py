"""What an older redis-py lacks is supplied with redis-py 8's signatures, words and errors."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
from typing import Any

import pytest
import redis
from redis.commands import core
from redis.connection import AbstractConnection, SSLConnection

from workstealing.store import redis_versions

IN = dt.timedelta(seconds=90, milliseconds=400)
AT = dt.datetime(2200, 1, 1, 12, 30, tzinfo=dt.UTC)
TELLING = ("httl", "hpttl", "hexpiretime", "hpexpiretime")
LASTING = ("hexpire", "hpexpire")
LASTING_UNTIL = ("hexpireat", "hpexpireat")
FNX = redis_versions.HashDataPersistOptions.FNX
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, ("k", *fields), {}) for name in TELLING for fields in ((), ("f",), ("f", "g"))),
    *((name, ("k", time, "f", "g"), {}) for name in LASTING for time in (0, 7, -1, "9", 1.5, IN)),
    *((name, ("k", time, "f"), {}) for name in LASTING_UNTIL for time in (0, 7, "9", AT)),
    *(
        (name, ("k", 7, "f"), options)
        for name in (*LASTING, *LASTING_UNTIL)
        for options in ({"nx": True}, {"xx": True}, {"gt": True}, {"lt": True})
    ),
    *((name, ("k", 7, "f"), {"nx": True, "lt": True}) for name in (*LASTING, *LASTING_UNTIL)),
    ("hpersist", ("k", "f", "g"), {}),
    ("hpersist", ("k",), {}),
    ("hgetdel", ("k", "f", "g"), {}),
    ("hgetdel", ("k",), {}),
    ("hgetex", ("k",), {}),
    *(
        (name, ("k", *args), options)
        for name, args in (("hgetex", ("f", "g")), ("hsetex", ("f", "v")))
        for options in (
            {},
            *({"ex": time} for time in (0, 5, "5", "five", 1.5, IN)),
            *({"px": time} for time in (0, 5, "5", 1.5, IN)),
            *({"exat": time} for time in (5, "5", AT)),
            *({"pxat": time} for time in (5, "5", AT)),
            {"ex": 1, "px": 1},
            {"px": 1, "pxat": 0},
        )
    ),
    ("hgetex", ("k", "f"), {"persist": True}),
    ("hgetex", ("k", "f"), {"persist": True, "ex": 0}),
    ("hsetex", ("k",), {}),
    ("hsetex", ("k",), {"mapping": {}}),
    ("hsetex", ("k",), {"items": ["a", 1, "b"]}),
    ("hsetex", ("k", "f", None), {"items": ["a", 1], "mapping": {"c": 2, "d": 3}, "ex": 3}),
    ("hsetex", ("k", "f", "v"), {"keepttl": True}),
    ("hsetex", ("k", "f", "v"), {"keepttl": True, "px": 4}),
    ("hsetex", ("k", "f", "v"), {"data_persist_option": FNX, "px": 4}),
    ("hsetex", ("k", "f", "v"), {"data_persist_option": FNX, "keepttl": True}),
]


class _Recording:
    """Keeps what a method would send."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        # redis-py 8 names the key of a reading command, for its cache, and others ignore that.
        return (args, {name: value for name, value in options.items() if value is not None})


class _Supplied(_Recording, redis_versions._LaterHashCommands, redis_versions._LaterScans):
    pass


class _RedisPys(_Recording, core.HashCommands, core.ScanCommands):
    pass


def _told(kind: type[Any], name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    try:
        return getattr(kind(), name)(*args, **options)
    except (ValueError, redis.DataError) as error:
        return type(error)


@pytest.mark.parametrize(("name", "args", "options"), CALLS)
def test_a_supplied_method_sends_what_redis_pys_own_sends(
    name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    supplied = _told(_Supplied, name, args, options)
    if hasattr(core.HashCommands, "himport_set"):
        assert supplied == _told(_RedisPys, name, args, options)
    # Before redis-py 8, its own methods took an option of 0 for none.
    if isinstance(supplied, tuple):
        assert supplied[0][:2] == (name.upper(), "k")
        assert "FIELDS" in supplied[0]


@pytest.mark.parametrize("no_values", [None, True])
@pytest.mark.parametrize("match", [None, "f*"])
def test_a_supplied_hscan_sends_what_redis_pys_own_sends(
    match: str | None, no_values: bool | None
) -> None:
    options = {"match": match, "count": 5, "no_values": no_values}
    supplied = _told(_Supplied, "hscan", ("k",), options)
    assert (b"NOVALUES" in supplied[0]) is bool(no_values)
    if not redis_versions.MISREAD_COMMANDS:
        assert supplied == _told(_RedisPys, "hscan", ("k",), options)


@pytest.mark.parametrize(("no_values", "found"), [(None, [("f", 1), ("g", 2)]), (True, ["f", "g"])])
def test_a_supplied_hscan_iter_yields_all_pages(no_values: bool | None, found: list[Any]) -> None:
    def page(cursor: Any) -> Any:
        mine = {"f": 1} if cursor == "0" else {"g": 2}
        return (7 if cursor == "0" else 0, list(mine) if no_values else mine)

    class Blocking(redis_versions._LaterScans):
        def hscan(self, name: Any, cursor: Any = 0, *_: Any, **__: Any) -> Any:
            return page(cursor)

    class Awaited(redis_versions._LaterAsyncScans):
        async def hscan(self, name: Any, cursor: Any = 0, *_: Any, **__: Any) -> Any:
            return page(cursor)

    async def collected() -> list[Any]:
        return [each async for each in Awaited().hscan_iter("k", no_values=no_values)]

    assert list(Blocking().hscan_iter("k", no_values=no_values)) == found
    assert asyncio.run(collected()) == found


def test_the_supplied_signatures_are_redis_py_8s() -> None:
    for kind, known in (
        (redis_versions._LaterHashCommands, core.HashCommands),
        (redis_versions._LaterScans, core.ScanCommands),
        (redis_versions._LaterAsyncScans, core.AsyncScanCommands),
    ):
        for name in (each for each in dir(kind) if not each.startswith("_")):
            if not callable(getattr(kind, name)) or not hasattr(known, name):
                continue
            if name.startswith("hscan") and redis_versions.MISREAD_COMMANDS:
                continue
            ours, theirs = (inspect.signature(getattr(each, name)) for each in (kind, known))
            assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
                (p.name, p.kind, p.default) for p in theirs.parameters.values()
            ], name


def test_what_redis_py_has_is_its_own() -> None:
    """Nothing of ours stands in between, so that nothing becomes slower."""
    for name in ("HashCommands", "ScanCommands", "AsyncScanCommands"):
        ours, theirs = getattr(redis_versions, name), getattr(core, name)
        is_complete = hasattr(theirs, "hsetex") or (
            name != "HashCommands" and not redis_versions.MISREAD_COMMANDS
        )
        assert (ours is theirs) is is_complete
    has_checks = hasattr(AbstractConnection, "connect_check_health")
    assert (redis_versions.AbstractConnection is AbstractConnection) is has_checks
    has_context = hasattr(SSLConnection, "_wrap_socket_with_ssl")
    assert (redis_versions.SSLConnection is SSLConnection) is has_context
