"""Durable keys answer as Redis 7's own strings with a time to live do, reply for reply.

A Hypothesis machine runs the same random commands on both. Deadlines are real and short: replies
that were made while a deadline might have been passing are not compared, and both sides are wiped.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from support.parity import (
    SLACK_MS,
    Amounts,
    ParityMachine,
    call,
    long_ms,
    merged,
    outcome,
    resolved,
    run_machine,
    short_ms,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys

KEYS = [b"k:0", b"k{1", b"{}2\xff"]
TIMES = {"ttl": 1, "expiretime": 1, "pttl": SLACK_MS, "pexpiretime": SLACK_MS}
# What Redis does to a key of any type, and durable keys do to their own alone.
WHOLES = {"set", "delete", "unlink", "persist", "expire", "pexpire", "expireat", "pexpireat"}

keys = st.sampled_from(KEYS)
values = st.sampled_from(["1", 5, 2.5, b"\xff\x00", "", "\u00e9", "OK"])
BAD = [-1, 2**63, -(2**63), "abc", "1.5", "", "+1"]
amounts = Amounts(
    seconds=[*BAD, 2**62, 10**12],
    ms=[*BAD, 10**15],
    at_seconds=[*BAD, 2**62],
    at_ms=[*BAD, 2**53 - 1],
)
time_option = amounts.option()
set_options = merged(
    st.one_of(time_option, time_option, st.sampled_from([{}, {"keepttl": True}])),
    st.sampled_from([{}, {}, {"nx": True}, {"xx": True}]),
    st.sampled_from([{}, {"get": True}]),
)
condition = st.sampled_from(
    [
        *[{}, {}, {"nx": True}, {"xx": True}, {"gt": True}, {"lt": True}],
        *[{"xx": True, "gt": True}, {"xx": True, "lt": True}, {"nx": True, "gt": True}],
        {"gt": True, "lt": True},
    ]
)
names = st.lists(keys, min_size=1, max_size=4)
WRITES = st.one_of(
    call("set", keys, values, options=set_options),
    call("set", keys, values, options=set_options),
    call("getex", keys, options=st.one_of(time_option, st.sampled_from([{}, {"persist": True}]))),
    call("getdel", keys),
    call("persist", keys),
    call("delete", spread=names),
    call("unlink", spread=names),
)
EXPIRES = st.one_of(
    call("pexpire", keys, short_ms, options=condition),
    call("expire", keys, amounts.seconds, options=condition),
    call("pexpire", keys, amounts.ms, options=condition),
    call("expireat", keys, amounts.at_seconds, options=condition),
    call("pexpireat", keys, amounts.at_ms, options=condition),
)
READS = st.one_of(
    call("get", keys),
    *[call(name, keys) for name in TIMES],
    call("mget", st.lists(keys, max_size=4)),
    call("exists", spread=names),
)
ANY = st.one_of(WRITES, EXPIRES, READS)


def named(name: str, args: Any) -> list[bytes]:
    """Return the keys that a call names."""
    if name == "mget":
        return list(args[0])
    return list(args) if name in ("delete", "unlink", "exists") else [args[0]]


def is_same(name: str, native: Any, durable: Any) -> bool:
    """Compare two replies; those about times may differ by what passed between the two calls."""
    if name in TIMES and isinstance(native, int) and isinstance(durable, int):
        close = native >= 0 and durable >= 0 and abs(native - durable) <= TIMES[name]
        return native == durable or close
    return type(native) is type(durable) and bool(native == durable)


class Parity(ParityMachine):
    """Runs each command on plain keys and on durable ones."""

    native: ClassVar[redis.Redis]
    ours: ClassVar[DurableKeys]

    def new_job(self) -> KeyExpiry:
        return KeyExpiry(self.ours, limit=3)

    @rule(made=WRITES)
    def write(self, made: Any) -> None:
        self.compare(*made)
        self.compare_state(*made)

    @rule(made=EXPIRES)
    def expire(self, made: Any) -> None:
        self.compare(*made)
        self.compare_state(*made)

    @rule(made=READS)
    def read(self, made: Any) -> None:
        self.compare(*made)

    @rule(key=keys, options=time_option)
    def fill(self, key: bytes, options: dict[str, Any]) -> None:
        """Most commands need something to work on."""
        self.compare("set", (key, 7), options)

    @rule(key=keys, moments=st.tuples(long_ms, long_ms), options=condition)
    def move_a_deadline(self, key: bytes, moments: tuple[int, int], options: Any) -> None:
        """Conditions are about what is there, so something is."""
        self.compare("set", (key, 7), {"px": moments[0]})
        self.compare("pexpire", (key, moments[1]), options)
        self.compare("pttl", (key,), {})

    @rule(made=ANY)
    def meet_garbage(self, made: Any) -> None:
        """A key's deadline passes, and a command that names it is the first to come by."""
        for key in named(made[0], made[1]):
            self.compare("set", (key, "garbage"), {"px": 30})
        self.advance()
        self.compare(*made)
        self.compare_state(*made)

    @rule(made=ANY)
    def meet_another_type(self, made: Any) -> None:
        """Somebody has put a hash there: what only its own type may have is refused by both."""
        name, args, options = made
        self.settle()
        mine = set(named(name, args))
        for client in (self.native, self.ours.client):
            for key in mine:
                client.delete(key)
                client.hset(key, "f", 1)
        args, options = resolved(name, args, options)
        native = outcome(self.native, name, args, options)
        durable = outcome(self.ours, name, args, options)
        if name in WHOLES and native != durable:
            assert "WRONGTYPE" in durable[1], (made, native, durable)
        else:
            assert is_same(name, native, durable), (made, native, durable)
        for key in mine:
            assert self.ours.client.hgetall(key) == {b"f": b"1"}
            for client in (self.native, self.ours.client):
                client.delete(key)

    @invariant()
    def nothing_may_be_evicted(self) -> None:
        for key in KEYS:
            assert self.ours.client.pttl(key) < 0

    @invariant()
    def the_due_index_finds_all_that_has_a_deadline(self) -> None:
        client = self.ours.client
        indexed = {key for due in client.keys("*:due") for key in client.zrange(due, 0, -1)}
        assert {key for key in KEYS if self.ours.pttl(key) >= 0} <= indexed

    def teardown(self) -> None:
        # At the end of time nothing of ours is left but marks, whatever became of the keys.
        far: DurableKeys = DurableKeys(self.ours.client, self.ours.namespace, clock_shift_ms=2**53)
        job = KeyExpiry(far)
        while job.backlog().count:
            job.perform(Slice(100, 5.0))
        assert self.ours.client.keys("*:due") == []
        for key in KEYS:
            assert self.ours.ttl(key) < 0

    def compare_state(self, name: str, args: Any, _: Any) -> None:
        """Compare what a call has left at the keys that it names."""
        for key in named(name, args):
            self.compare("get", (key,), {})
            self.compare("pttl", (key,), {})

    def check(self, call: tuple[str, Any, Any], native: Any, ours: Any) -> None:
        name, args, options = call
        assert is_same(name, native, ours), (
            f"{name}{args} {options}: Redis says {native}, durable keys {ours}"
        )

    def native_deadlines(self, name: str, args: Any) -> list[int]:
        return [self.native.pexpiretime(args[0])]


@pytest.mark.slow
def test_durable_keys_answer_as_redis_does(redis7: RedisServer) -> None:
    ours = DurableKeys(redis7.client(), "parity")
    run_machine(Parity, 2, native=redis7.client(db=1), ours=ours)
