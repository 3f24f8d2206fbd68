"""EXPIRE and its siblings on a whole emulated hash: the same replies on the oldest server, too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ResponseError

from support.servers import AnyServer
from workstealing.structures import VolatileHashes

SERVERS = ("redis62", "redis7", "redis8", "valkey8", "cluster")
AT_S = 10_000_000_000
OVERFLOWS = "invalid expire time in '{}' command"


@pytest.fixture(params=SERVERS)
def hashes(request: pytest.FixtureRequest) -> VolatileHashes:
    """A namespace with a hash "k", whose field has a deadline of its own."""
    server: AnyServer = request.getfixturevalue(request.param)
    found: VolatileHashes = VolatileHashes(server.client(), "whole", backend="emulated")
    found.hsetex("k", "f", 1, exat=AT_S + 50)
    return found


def test_the_end_of_a_hash_is_told_in_milliseconds_and_in_rounded_seconds(
    hashes: VolatileHashes,
) -> None:
    assert (hashes.expiretime("k"), hashes.pexpiretime("k")) == (-1, -1)
    assert (hashes.expiretime("none"), hashes.pexpiretime("none")) == (-2, -2)
    for ms, seconds in ((499, AT_S), (500, AT_S + 1)):
        assert hashes.pexpireat("k", AT_S * 1000 + ms)
        # By another way than PEXPIRETIME it must be exact each time, not most of the time.
        assert {hashes.pexpiretime("k") for _ in range(50)} == {AT_S * 1000 + ms}
        assert hashes.expiretime("k") == seconds


SETS: list[tuple[str, Callable[[int], int]]] = [
    ("expireat", lambda at: at),
    ("pexpireat", lambda at: at * 1000),
    ("expire", lambda at: at - int(time.time())),
    ("pexpire", lambda at: at * 1000 - int(time.time() * 1000)),
]


@pytest.mark.parametrize(("name", "amount"), SETS, ids=[name for name, _ in SETS])
def test_conditions_decide_as_they_do_from_redis_7_on(
    hashes: VolatileHashes, name: str, amount: Callable[[int], int]
) -> None:
    def end(at: int, **conditions: bool) -> bool:
        return bool(getattr(hashes, name)("k", amount(at), **conditions))

    later, earlier = AT_S + 10_000, AT_S - 10_000
    assert not end(AT_S, xx=True)
    assert not end(AT_S, gt=True)
    assert not end(AT_S, xx=True, lt=True)
    assert hashes.ttl("k") == -1
    assert end(AT_S, nx=True)
    assert not end(later, nx=True)
    assert not end(earlier, gt=True)
    assert not end(later, lt=True)
    assert abs(hashes.expiretime("k") - AT_S) <= 60
    assert end(later, gt=True)
    assert end(AT_S, xx=True)
    assert end(earlier, xx=True, lt=True)
    assert abs(hashes.expiretime("k") - earlier) <= 60
    assert hashes.persist("k")
    assert end(later, lt=True)
    assert not getattr(hashes, name)("none", amount(AT_S), nx=True)


def test_an_equal_moment_is_neither_later_nor_earlier(hashes: VolatileHashes) -> None:
    hashes.pexpireat("k", AT_S * 1000 + 1)
    for _ in range(50):
        assert not hashes.pexpireat("k", AT_S * 1000 + 1, gt=True)
        assert not hashes.pexpireat("k", AT_S * 1000 + 1, lt=True)


REFUSED: list[tuple[tuple[Any, ...], str]] = [
    *((("EXPIRE", "k", amount), OVERFLOWS.format("expire")) for amount in (2**62, -(2**62))),
    (("EXPIRE", "none", 2**62), OVERFLOWS.format("expire")),
    (("EXPIRE", "k", 9223372036854776), OVERFLOWS.format("expire")),
    (("PEXPIRE", "k", 2**63 - 1), OVERFLOWS.format("pexpire")),
    (("EXPIREAT", "k", 2**62), OVERFLOWS.format("expireat")),
    *(
        (("EXPIRE", "k", amount), "value is not an integer or out of range")
        for amount in (2**63, "x", "1.5", "", "+1")
    ),
    (("EXPIRE", "k", 5, "NOW"), "Unsupported option NOW"),
    (("EXPIRE", "k", 5, "NX", "xx"), "NX and XX, GT or LT options at the same time"),
    (("EXPIRE", "k", 5, "GT", "LT"), "GT and LT options at the same time"),
]


def test_a_refused_call_leaves_the_hash_and_its_end_alone(hashes: VolatileHashes) -> None:
    hashes.pexpireat("k", AT_S * 1000)
    for args, why in REFUSED:
        with pytest.raises(ResponseError, match=why):
            hashes.execute_command(*args)
        assert hashes.hget("k", "f") == b"1", args
        assert hashes.pexpiretime("k") == AT_S * 1000, args


def test_a_moment_that_is_past_deletes_the_hash_and_what_stands_beside_it(
    hashes: VolatileHashes,
) -> None:
    assert not hashes.expire("k", -1, gt=True)
    assert hashes.exists("k")
    assert hashes.expire("k", -1, lt=True)
    assert not hashes.exists("k")
    assert not hashes.client.exists(hashes.names.deadlines(b"k"))
