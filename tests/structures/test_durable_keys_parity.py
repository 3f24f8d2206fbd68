"""Durable keys answer as Redis 7's own strings with a time to live do, reply for reply.

A Hypothesis machine runs the same random commands on both. Deadlines are real and short: replies
that were made while a deadline might have been passing are not compared, and both sides are wiped.
"""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys

# How far, in milliseconds, the replies of both sides about a time to live may be apart; deadlines
# nearer to each other than this are not compared by GT and LT.
SLACK_MS = 400
# A long run by hand: WORKSTEALING_PARITY_EXAMPLES=3000 and --hypothesis-seed.
EXAMPLES = int(os.environ.get("WORKSTEALING_PARITY_EXAMPLES") or settings.default.max_examples // 2)
STEPS = 40
SHORT_MS = 60

KEYS = [b"k:0", b"k{1", b"{}2\xff"]
TIMES = {"ttl": 1, "expiretime": 1, "pttl": SLACK_MS, "pexpiretime": SLACK_MS}
# What Redis does to a key of any type, and durable keys do to their own alone.
WHOLES = {"set", "delete", "unlink", "persist", "expire", "pexpire", "expireat", "pexpireat"}


class At(int):
    """A moment so many milliseconds from the call, in the unit of the option that it stands in."""

    def __repr__(self) -> str:
        return f"At({int(self)})"


keys = st.sampled_from(KEYS)
values = st.sampled_from(["1", 5, 2.5, b"\xff\x00", "", "\u00e9", "OK"])
short = st.integers(30, SHORT_MS)
long = st.sampled_from([50_000, 100_000, 1_000_000])
BAD = [-1, 2**63, -(2**63), "abc", "1.5", "", "+1"]


def mostly(usual: Any, rare: list[Any]) -> st.SearchStrategy[Any]:
    """Strategy of usual amounts; one in eight is a rare one, for calls that fail change little."""
    return st.integers(0, 7).flatmap(lambda n: st.sampled_from(rare) if n == 7 else usual)


seconds = mostly(st.sampled_from([50, 100, 1000, 0]), [*BAD, 2**62, 10**12])
milliseconds = mostly(st.one_of(short, long, st.just(0)), [*BAD, 10**15])
at_seconds = mostly(st.one_of(long.map(At), st.sampled_from([0, 1])), [*BAD, 2**62])
at_milliseconds = mostly(
    st.one_of(short.map(At), long.map(At), st.sampled_from([0, 1])), [*BAD, 2**53 - 1]
)
time_option = st.one_of(
    st.fixed_dictionaries({"px": short}),
    st.fixed_dictionaries({"px": milliseconds}),
    st.fixed_dictionaries({"ex": seconds}),
    st.fixed_dictionaries({"exat": at_seconds}),
    st.fixed_dictionaries({"pxat": at_milliseconds}),
)
set_options = st.tuples(
    st.one_of(time_option, time_option, st.sampled_from([{}, {"keepttl": True}])),
    st.sampled_from([{}, {}, {"nx": True}, {"xx": True}]),
    st.sampled_from([{}, {"get": True}]),
).map(lambda parts: {word: value for part in parts for word, value in part.items()})
condition = st.sampled_from(
    [
        *[{}, {}, {"nx": True}, {"xx": True}, {"gt": True}, {"lt": True}],
        *[{"xx": True, "gt": True}, {"xx": True, "lt": True}, {"nx": True, "gt": True}],
        {"gt": True, "lt": True},
    ]
)


def call(name: str, *args: Any, options: Any = None) -> Any:
    """A strategy of calls: (method, args, keyword arguments)."""
    return st.tuples(st.just(name), st.tuples(*args), st.just({}) if options is None else options)


def spread(name: str) -> Any:
    """A strategy of calls on one to four names."""
    names = st.lists(keys, min_size=1, max_size=4)
    return names.map(lambda some: (name, tuple(some), {}))


WRITES = st.one_of(
    call("set", keys, values, options=set_options),
    call("set", keys, values, options=set_options),
    call("getex", keys, options=st.one_of(time_option, st.sampled_from([{}, {"persist": True}]))),
    call("getdel", keys),
    call("persist", keys),
    spread("delete"),
    spread("unlink"),
)
EXPIRES = st.one_of(
    call("pexpire", keys, short, options=condition),
    call("expire", keys, seconds, options=condition),
    call("pexpire", keys, milliseconds, options=condition),
    call("expireat", keys, at_seconds, options=condition),
    call("pexpireat", keys, at_milliseconds, options=condition),
)
READS = st.one_of(
    call("get", keys),
    *[call(name, keys) for name in TIMES],
    call("mget", st.lists(keys, max_size=4)),
    spread("exists"),
)
ANY = st.one_of(WRITES, EXPIRES, READS)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def outcome(side: Any, name: str, args: Any, options: Any) -> Any:
    try:
        return getattr(side, name)(*args, **options)
    except redis.RedisError as error:
        return (type(error), str(error))


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


class Parity(RuleBasedStateMachine):
    """Runs each command on plain keys and on durable ones."""

    native: redis.Redis
    durable: DurableKeys

    def __init__(self) -> None:
        super().__init__()
        # The spans of time, in milliseconds, in which a deadline passes on one side or the other.
        self.bands: list[tuple[int, int]] = []
        self.job = KeyExpiry(self.durable, limit=3)

    @initialize()
    def wipe(self) -> None:
        self.native.flushdb()
        self.durable.client.flushdb()
        self.durable.forget()

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

    @rule(key=keys, amounts=st.tuples(long, long), options=condition)
    def move_a_deadline(self, key: bytes, amounts: tuple[int, int], options: Any) -> None:
        """Conditions are about what is there, so something is."""
        self.compare("set", (key, 7), {"px": amounts[0]})
        self.compare("pexpire", (key, amounts[1]), options)
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
        for client in (self.native, self.durable.client):
            for key in mine:
                client.delete(key)
                client.hset(key, "f", 1)
        args, options = self.resolved(name, args, options)
        native = outcome(self.native, name, args, options)
        durable = outcome(self.durable, name, args, options)
        if name in WHOLES and native != durable:
            assert "WRONGTYPE" in durable[1], (made, native, durable)
        else:
            assert is_same(name, native, durable), (made, native, durable)
        for key in mine:
            assert self.durable.client.hgetall(key) == {b"f": b"1"}
            for client in (self.native, self.durable.client):
                client.delete(key)

    @rule(limit=st.integers(1, 7))
    def collect(self, limit: int) -> None:
        """Collecting changes no answer, whenever it happens."""
        self.settle()
        assert 0 <= self.job.perform(Slice(limit, 5.0)) <= limit

    @rule()
    def advance(self) -> None:
        """Let every short deadline pass."""
        self.wait_until(max((high for _, high in self.bands), default=0))
        self.settle()

    @invariant()
    def nothing_may_be_evicted(self) -> None:
        for key in KEYS:
            assert self.durable.client.pttl(key) < 0

    @invariant()
    def the_due_index_finds_all_that_has_a_deadline(self) -> None:
        client = self.durable.client
        indexed = {key for due in client.keys("*:due") for key in client.zrange(due, 0, -1)}
        assert {key for key in KEYS if self.durable.pttl(key) >= 0} <= indexed

    def teardown(self) -> None:
        # At the end of time nothing of ours is left but marks, whatever became of the keys.
        far: DurableKeys = DurableKeys(
            self.durable.client, self.durable.namespace, clock_shift_ms=2**53
        )
        job = KeyExpiry(far)
        while job.backlog().keys:
            job.perform(Slice(100, 5.0))
        assert self.durable.client.keys("*:due") == []
        for key in KEYS:
            assert self.durable.ttl(key) < 0

    def compare_state(self, name: str, args: Any, _: Any) -> None:
        """Compare what a call has left at the keys that it names."""
        for key in named(name, args):
            self.compare("get", (key,), {})
            self.compare("pttl", (key,), {})

    def compare(self, name: str, args: Any, options: Any) -> None:
        self.settle()
        args, options = self.resolved(name, args, options)
        if self.is_near_tie(name, args, options):
            return
        before = now_ms()
        native = outcome(self.native, name, args, options)
        durable = outcome(self.durable, name, args, options)
        after = now_ms()
        if any(low <= after for low, _ in self.bands):
            # A deadline passed meanwhile: nobody can say what was right.
            self.bands.clear()
            self.wipe()
            return
        self.note_deadline(name, args, options, (before, after))
        assert is_same(name, native, durable), (
            f"{name}{args} {options}: Redis says {native}, durable keys {durable}"
        )

    def settle(self) -> None:
        """Wait where a deadline is passing or about to, and forget those that have passed."""
        while near := [high for low, high in self.bands if low - 3 <= now_ms() <= high]:
            self.wait_until(max(near))
        self.bands = [band for band in self.bands if band[1] >= now_ms()]

    @staticmethod
    def wait_until(moment: int) -> None:
        while now_ms() <= moment:
            time.sleep(0.001)

    @staticmethod
    def resolved(name: str, args: Any, options: Any) -> tuple[Any, dict[str, Any]]:
        at = now_ms()

        def resolve(word: str, argument: Any) -> Any:
            if not isinstance(argument, At):
                return argument
            moment = at + argument
            return moment if word.startswith(("px", "pe")) else moment // 1000

        return (
            tuple(resolve(name, argument) for argument in args),
            {word: resolve(word, argument) for word, argument in options.items()},
        )

    def is_near_tie(self, name: str, args: Any, options: Any) -> bool:
        """Say whether GT or LT would be decided by which side was asked first."""
        if not (options.get("gt") or options.get("lt")) or not isinstance(args[1], int):
            return False
        wanted = args[1] if name.startswith("p") else args[1] * 1000
        wanted += 0 if name.endswith("at") else now_ms()
        current = self.native.pexpiretime(args[0])
        return bool(current > 0 and abs(current - wanted) < SLACK_MS)

    def note_deadline(self, name: str, args: Any, options: Any, span: tuple[int, int]) -> None:
        before, after = span
        amounts = [options[word] for word in ("px", "pxat") if word in options]
        if name in ("pexpire", "pexpireat"):
            amounts.append(args[1])
        for amount in amounts:
            if isinstance(amount, int) and 0 < amount <= SHORT_MS:
                self.bands.append((before + amount - 1, after + amount + 1))
            elif isinstance(amount, int) and abs(amount - before) <= 200:
                self.bands.append((amount - 1, amount + 1))


def test_durable_keys_answer_as_redis_does(redis7: RedisServer) -> None:
    machine = type(
        "Machine",
        (Parity,),
        {
            "native": redis7.client(db=1),
            "durable": DurableKeys(redis7.client(), "parity"),
        },
    )
    run_state_machine_as_test(
        machine,
        # Shrinking runs in real time would take minutes, and the steps are few.
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            phases=[Phase.reuse, Phase.generate],
            report_multiple_bugs=False,
        ),
    )
