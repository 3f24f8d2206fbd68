"""Emulated hashes answer as Redis 8's own commands do, reply for reply, except where one list says.

A Hypothesis machine runs the same random commands on both. Deadlines are real and short: replies
that were made while a deadline might have been passing are not compared, and both sides are wiped.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
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
from redis.commands.core import HashDataPersistOptions

from support.hash_checks import check_index, collect_all
from support.hash_differences import FOREIGN, GARBAGE, TWO_ERRORS, is_allowed
from support.hash_model import ModelHashes, now_ms
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, ServerMissingError, find_server
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Slice
from workstealing.structures import VolatileHashes

# How far, in milliseconds, the replies of both sides about a time to live may be apart; deadlines
# nearer to each other than this are not compared by GT and LT.
SLACK_MS = 400
# A long run by hand: WORKSTEALING_PARITY_EXAMPLES=3000 and --hypothesis-seed.
EXAMPLES = int(os.environ.get("WORKSTEALING_PARITY_EXAMPLES") or settings.default.max_examples // 4)
STEPS = 40

KEYS = [b"h:0", b"h{1", b"{}2\xff"]
FIELDS = [b"f", "g", b"\xff\x00", "\u00e9", ""]
VALUES = ["1", 5, 2.5, b"x", "", 2**53 + 1]
BAD_AMOUNTS = [-1, 2**46, 2**63, -(2**63), "abc", "1.5", "", "+1"]

TIMES = {"httl", "hpttl", "hexpiretime", "hpexpiretime", "ttl", "pttl", "expiretime", "pexpiretime"}
UNORDERED = {"hkeys", "hvals"}


class At(int):
    """A moment so many milliseconds from the call, in the unit of the option that it stands in."""

    def __repr__(self) -> str:
        return f"At({int(self)})"


keys = st.sampled_from(KEYS)
field = st.sampled_from(FIELDS)
fields = st.lists(field, min_size=1, max_size=4)
value = st.sampled_from(VALUES)
short_ms = st.integers(30, 60)
long_ms = st.sampled_from([50_000, 100_000, 1_000_000])


def _mostly(usual: Any, rare: list[Any]) -> st.SearchStrategy[Any]:
    """Strategy of usual amounts; one in eight is a rare one, for calls that fail change little."""
    return st.integers(0, 7).flatmap(lambda n: st.sampled_from(rare) if n == 7 else usual)


seconds = _mostly(st.sampled_from([50, 100, 1000, 0]), BAD_AMOUNTS)
milliseconds = _mostly(st.one_of(short_ms, long_ms, st.just(0)), [*BAD_AMOUNTS, 2**46 - 1])
at_seconds = _mostly(st.one_of(long_ms.map(At), st.sampled_from([0, 1])), BAD_AMOUNTS)
at_milliseconds = _mostly(
    st.one_of(short_ms.map(At), long_ms.map(At), st.sampled_from([0, 1])),
    [*BAD_AMOUNTS, 2**46 - 1],
)
# One in three calls has short deadlines, for these make the garbage that all this is about.
_time_option = st.one_of(
    st.fixed_dictionaries({"px": short_ms}),
    st.fixed_dictionaries({"px": milliseconds}),
    st.fixed_dictionaries({"ex": seconds}),
    st.fixed_dictionaries({"exat": at_seconds}),
    st.fixed_dictionaries({"pxat": at_milliseconds}),
)
condition = st.sampled_from([{}, {}, {"nx": True}, {"xx": True}, {"gt": True}, {"lt": True}])
persist_option = st.sampled_from(
    [{}, {}] + [{"data_persist_option": option} for option in HashDataPersistOptions]
)


def _merged(*parts: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*parts).map(lambda found: {k: v for part in found for k, v in part.items()})


def _call(name: str, *args: Any, options: Any = None, spread: Any = None) -> Any:
    """A strategy of calls: (method, args, keyword arguments)."""
    spread = st.just([]) if spread is None else spread
    return st.tuples(st.tuples(*args), spread, st.just({}) if options is None else options).map(
        lambda made: (name, (*made[0], *made[1]), made[2])
    )


mapping = st.dictionaries(field, value, min_size=1, max_size=4)
items = st.lists(st.tuples(field, value), min_size=1, max_size=4).map(
    lambda pairs: [x for pair in pairs for x in pair]
)
_hsetex_values = st.one_of(
    st.fixed_dictionaries({"mapping": mapping}),
    st.fixed_dictionaries({"items": items}),
    st.fixed_dictionaries({"key": field, "value": value}),
)
WRITES = st.one_of(
    _call("hset", keys, options=st.fixed_dictionaries({"mapping": mapping})),
    _call("hset", keys, options=st.fixed_dictionaries({"items": items})),
    _call("hmset", keys, mapping),
    _call("hsetnx", keys, field, value),
    *[
        _call("hsetex", keys, options=_merged(_hsetex_values, persist_option, option))
        for option in (_time_option, _time_option, st.sampled_from([{}, {"keepttl": True}]))
    ],
    *[
        _call("hgetex", keys, spread=fields, options=option)
        for option in (_time_option, st.sampled_from([{}, {"persist": True}]))
    ],
    _call("hgetdel", keys, spread=fields),
    _call("hdel", keys, spread=st.lists(field, max_size=4)),
    _call("hincrby", keys, field, st.sampled_from([1, -3, 2**62, "x", 1.5])),
    _call("hincrbyfloat", keys, field, st.sampled_from([0.5, -2.25, 3, "x", "nan", "inf"])),
    _call("hpersist", keys, spread=fields),
)
EXPIRES = st.one_of(
    _call("hpexpire", keys, short_ms, spread=fields, options=condition),
    *[
        _call(name, keys, amount, spread=st.lists(field, max_size=4), options=condition)
        for name, amount in (
            ("hexpire", seconds),
            ("hpexpire", milliseconds),
            ("hexpireat", at_seconds),
            ("hpexpireat", at_milliseconds),
        )
    ],
)
READS = st.one_of(
    *[_call(name, keys, field) for name in ("hget", "hexists", "hstrlen")],
    *[_call(name, keys) for name in ("hgetall", "hkeys", "hvals", "hlen", "exists")],
    *[_call(name, keys) for name in ("ttl", "pttl", "expiretime", "pexpiretime")],
    *[
        _call(name, keys, spread=fields)
        for name in ("httl", "hpttl", "hexpiretime", "hpexpiretime")
    ],
    _call("hmget", keys, st.lists(field, max_size=4)),
    _call(
        "hscan",
        keys,
        st.sampled_from([0, 0, 0, "x"]),
        options=st.fixed_dictionaries(
            {},
            optional={
                "match": st.sampled_from(["*", "f", "NOVALUES", "g*"]),
                "count": st.sampled_from([1, 100, 0, "x"]),
                "no_values": st.just(True),
            },
        ),
    ),
    _call("hscan_iter", keys, options=st.sampled_from([{}, {"match": "f*"}, {"no_values": True}])),
    _call(
        "hrandfield",
        keys,
        st.sampled_from([None, 0, 1, 2, 10, -1, -7, "x", 2**63, -(2**63)]),
        options=st.sampled_from([{}, {"withvalues": True}]),
    ),
)
WHOLES = st.one_of(
    _call("expire", keys, st.sampled_from([100, 1000, 0, -1, 2**62, "x"]), options=condition),
    _call(
        "pexpire", keys, st.one_of(short_ms, long_ms, st.sampled_from([0, "x"])), options=condition
    ),
    _call("expireat", keys, long_ms.map(At), options=condition),
    _call("pexpireat", keys, st.one_of(short_ms, long_ms).map(At), options=condition),
    *[_call(name, keys) for name in ("persist", "delete", "unlink")],
    *[_call(name, keys, keys) for name in ("rename", "renamenx", "copy")],
    _call("copy", keys, keys, options=st.just({"replace": True})),
)


def _outcome(side: Any, name: str, args: Any, options: Any) -> Any:
    try:
        reply = getattr(side, name)(*args, **options)
        return list(reply) if name == "hscan_iter" else reply
    except (redis.RedisError, ValueError) as error:
        return (type(error), str(error))


class Parity(RuleBasedStateMachine):
    """Runs each command on a native and on an emulated side; subclasses say which."""

    native: ClassVar[Any]
    emulated: ClassVar[VolatileHashes]
    sweeps: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        # The spans of time, in milliseconds, in which a deadline passes on one side or the other.
        self.bands: list[tuple[int, int]] = []
        self.garbage: set[bytes] = set()
        self.job = HashFieldExpiry(self.emulated, limit=3)

    @initialize()
    def wipe(self) -> None:
        self.native.flushdb()
        self.emulated.client.flushdb()
        self.emulated.forget()
        self.garbage.clear()

    # Commands.

    @rule(call=WRITES)
    def write(self, call: Any) -> None:
        self._compare(*call)

    @rule(call=EXPIRES)
    def expire(self, call: Any) -> None:
        self._compare(*call)

    @rule(call=READS)
    def read(self, call: Any) -> None:
        self._compare(*call)

    @rule(call=WHOLES)
    def do_whole(self, call: Any) -> None:
        self._compare(*call)

    @rule(key=keys, gone=fields, lasting=fields)
    def fill(self, key: bytes, gone: list[Any], lasting: list[Any]) -> None:
        """Most commands need something to work on."""
        self._compare("hset", (key,), {"mapping": dict.fromkeys(FIELDS, 7)})
        self._compare("hexpire", (key, 1000, *lasting), {})
        self._compare("hpexpire", (key, 40, *gone), {})

    @rule(call=st.one_of(READS, WRITES, EXPIRES, WHOLES), gone=fields, all_go=st.booleans())
    def meet_garbage(self, call: Any, gone: list[Any], all_go: bool) -> None:
        """Fields expire, and a command that names their hash is the first to come by."""
        key = call[1][0]
        if all_go:
            self._compare("expire", (key, 1000), {})
        self._compare("hpexpire", (key, 30, *(FIELDS if all_go else gone)), {})
        self.advance()
        self._compare(*call)
        self._compare("hgetall", (key,), {})
        self._compare("ttl", (key,), {})

    @rule(call=st.one_of(READS, WRITES, EXPIRES, WHOLES), kind=st.sampled_from(["set", "delete"]))
    def meet_foreign(self, call: Any, kind: str) -> None:
        """Somebody overwrites the hash, or deletes it alone and leaves its deadlines behind."""
        key = call[1][0]
        self._settle()
        for client in (self.native, self.emulated.client):
            client.delete(key) if kind == "delete" else client.set(key, "foreign")
        self._compare(*call)
        for client in (self.native, self.emulated.client):
            if client.type(key) == b"string":
                client.delete(key)

    @rule(limit=st.integers(1, 7))
    def collect(self, limit: int) -> None:
        """Collecting changes no answer, whenever it happens."""
        self._settle()
        assert 0 <= self.job.perform(Slice(limit, 5.0)) <= limit

    @rule()
    def advance(self) -> None:
        """Let every short deadline pass."""
        self._wait_until(max((high for _, high in self.bands), default=0))
        self._sweep()

    @invariant()
    def index_finds_garbage_in_time(self) -> None:
        check_index(self.emulated)

    def teardown(self) -> None:
        self.advance()
        client = self.emulated.client
        collect_all(self.job)
        now = now_ms()
        assert not any(client.zcount(key, "-inf", now) for key in client.keys("*:ttl:*"))
        # At the end of time nothing of ours is left but marks, whatever became of the hashes.
        far = VolatileHashes(client, self.emulated.namespace, clock_shift_ms=2**46)
        collect_all(HashFieldExpiry(far))
        left = client.keys("*:ttl:*") + client.keys("*:due")
        assert not left, {key: client.zrange(key, 0, -1, withscores=True) for key in left}

    # Comparing.

    def _compare(self, name: str, args: Any, options: Any) -> None:
        self._settle()
        args = tuple(self._resolved(name, a) for a in args)
        options = {word: self._resolved(word, a) for word, a in options.items()}
        named = {key for key in args[:2] if key in KEYS}
        if self._is_near_tie(name, args, options):
            return
        situations = self._situations(named)
        before = now_ms()
        native = _outcome(self.native, name, args, options)
        emulated = _outcome(self.emulated, name, args, options)
        after = now_ms()
        if any(low <= after for low, _ in self.bands):
            # A deadline passed meanwhile: nobody can say what was right.
            self.wipe()
            return
        self._note_deadline(name, args, options, before, after)
        if name == "hrandfield":
            native, emulated = self._drawn(native, emulated, (args, options), situations)
        if is_same(name, native, emulated):
            return
        both_failed = _are_errors(native, emulated)
        if both_failed:
            situations.add(TWO_ERRORS)
        assert is_allowed(name, situations), (
            f"{name}{args} {options}: Redis 8 says {native}, emulated {emulated} ({situations})"
        )
        if not both_failed:
            self.wipe()

    def _settle(self) -> None:
        """Wait where a deadline is passing or about to, and forget those that have passed."""
        while near := [high for low, high in self.bands if low - 3 <= now_ms() <= high]:
            self._wait_until(max(near))
        self._sweep()

    def _wait_until(self, moment: int) -> None:
        while now_ms() <= moment:
            time.sleep(0.001)

    def _sweep(self) -> None:
        """After deadlines have passed: let the native side collect, or note where garbage is."""
        coming = [band for band in self.bands if band[1] >= now_ms()]
        has_passed = len(coming) < len(self.bands)
        self.bands = coming
        if isinstance(self.native, ModelHashes) or not has_passed:
            return
        give_up = time.monotonic() + 10
        while found := self._garbage():
            if not self.sweeps:
                self.garbage |= found
                return
            assert time.monotonic() < give_up, f"Redis 8 does not collect {found}"
            time.sleep(0.001)

    def _garbage(self) -> set[bytes]:
        found = set()
        for key in KEYS:
            with contextlib.suppress(redis.ResponseError):
                live = len(self.native.hkeys(key))
                if self.native.hlen(key) != live or (not live and self.native.exists(key)):
                    found.add(key)
        return found

    def _situations(self, named: set[bytes]) -> set[str]:
        situations = set()
        if any(self.native.type(key) not in (b"hash", b"none") for key in named):
            situations.add(FOREIGN)
        if named & self.garbage:
            situations.add(GARBAGE)
            # A hash may take its garbage, or what followed from it, to another key.
            self.garbage |= named
        return situations

    @staticmethod
    def _resolved(word: str, argument: Any) -> Any:
        if not isinstance(argument, At):
            return argument
        at = now_ms() + argument
        return at if word.startswith(("hp", "px", "pe")) else at // 1000

    def _is_near_tie(self, name: str, args: Any, options: Any) -> bool:
        """Say whether GT or LT would be decided by which side was asked first."""
        if not (options.get("gt") or options.get("lt")) or not isinstance(args[1], int):
            return False
        at = _absolute(name, args[1])
        with contextlib.suppress(redis.ResponseError):
            current = (
                self.native.hpexpiretime(args[0], *args[2:])
                if name.startswith("h") and args[2:]
                else [self.native.pexpiretime(args[0])]
            )
            return any(abs(deadline - at) < SLACK_MS for deadline in current if deadline > 0)
        return False

    def _note_deadline(self, name: str, args: Any, options: Any, before: int, after: int) -> None:
        amounts = [options[word] for word in ("px", "pxat") if word in options]
        if name in ("hpexpire", "hpexpireat", "pexpire", "pexpireat"):
            amounts.append(args[1])
        for amount in amounts:
            if isinstance(amount, int) and 0 < amount <= 60:
                self.bands.append((before + amount - 1, after + amount + 1))
            elif isinstance(amount, int) and abs(amount - before) <= 200:
                self.bands.append((amount - 1, amount + 1))

    def _drawn(self, native: Any, emulated: Any, call: Any, situations: set[str]) -> Any:
        """Turn random draws into what can be compared: how many, from among what is live."""
        args, options = call
        if any(_are_errors(outcome) for outcome in (native, emulated)):
            return native, emulated
        live = self.emulated.hgetall(args[0])
        if isinstance(emulated, list) and options.get("withvalues"):
            assert set(zip(emulated[::2], emulated[1::2], strict=True)) <= set(live.items())
        elif emulated is not None:
            assert (
                {emulated} <= set(live)
                if isinstance(emulated, bytes)
                else set(emulated) <= set(live)
            )
        if GARBAGE in situations:
            # Redis 8 gives up its search for live fields after some tries.
            return None, None
        if isinstance(emulated, list) and isinstance(native, list):
            return len(native), len(emulated)
        return type(native), type(emulated)


def _absolute(name: str, amount: int) -> int:
    at = amount if name in ("hpexpire", "hpexpireat", "pexpire", "pexpireat") else amount * 1000
    return at if name.endswith("at") else at + now_ms()


def _are_errors(*outcomes: Any) -> bool:
    return all(isinstance(o, tuple) and len(o) == 2 and isinstance(o[0], type) for o in outcomes)


def is_same(name: str, native: Any, emulated: Any) -> bool:
    """Compare two replies; those about times may differ by what passed between the two calls."""
    if name in TIMES and not _are_errors(native) and not _are_errors(emulated):
        pairs = list(
            zip(native, emulated, strict=True) if isinstance(native, list) else [(native, emulated)]
        )
        slack = SLACK_MS if name.lstrip("h").startswith("p") else 1
        return all(n == e or (n >= 0 and e >= 0 and abs(n - e) <= slack) for n, e in pairs)
    if name in UNORDERED or (name == "hscan_iter" and not _are_errors(native, emulated)):
        return (
            not _are_errors(native)
            and not _are_errors(emulated)
            and (sorted(native) == sorted(emulated))
        ) or native == emulated
    if name == "hscan" and not _are_errors(native) and not _are_errors(emulated):
        # The order and the cursor are each server's own; small hashes come in one piece.
        return (
            type(native[1]) is type(emulated[1])
            and sorted(native[1]) == sorted(emulated[1])
            and (not isinstance(native[1], dict) or native[1] == emulated[1])
        )
    return type(native) is type(emulated) and bool(native == emulated)


# Shrinking runs in real time would take minutes, and the steps are few.
SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    phases=[Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
)


def _run(native: Any, emulated: VolatileHashes, *, sweeps: bool = True) -> None:
    machine = type("Machine", (Parity,), {"native": native, "emulated": emulated, "sweeps": sweeps})
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.fixture(scope="module")
def quick_redis8() -> Iterator[RedisServer | None]:
    """A Redis 8 that collects expired fields within milliseconds; None where none can be had."""
    try:
        binary = find_server("redis", 8)
    except ServerMissingError:
        yield None
        return
    options = {"hz": 500, "active_expire_effort": 10, "enable_debug_command": "yes"}
    with RedisServer(binary, 8, name="quick redis8", **options) as server:
        yield server


@pytest.fixture
def native(quick_redis8: RedisServer | None) -> Any:
    if quick_redis8 is None:
        return ModelHashes()
    return quick_redis8.client(db=1)


def test_redis7_emulates_what_redis8_does(native: Any, redis7: RedisServer) -> None:
    _run(native, VolatileHashes(redis7.client(), "parity", backend="emulated"))


def test_redis8_emulates_what_it_does_itself_with_garbage_left_lying(
    native: Any, quick_redis8: RedisServer | None, redis7: RedisServer
) -> None:
    if quick_redis8 is None:
        _run(native, VolatileHashes(redis7.client(), "parity", backend="emulated"))
        return
    control = quick_redis8.client()
    control.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    try:
        hashes = VolatileHashes(quick_redis8.client(), "parity", backend="emulated")
        _run(native, hashes, sweeps=False)
    finally:
        control.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")


def test_the_model_that_stands_in_for_redis8_is_right(redis7: RedisServer) -> None:
    _run(ModelHashes(), VolatileHashes(redis7.client(), "parity", backend="emulated"))
