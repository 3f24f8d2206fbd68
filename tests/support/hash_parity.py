"""Machines that run the same random commands on Redis 8's own hashes and on volatile ones.

Deadlines are real and short: replies that were made while a deadline might have been passing are
not compared, and both sides are wiped. `hash_differences` has the one list of what may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from redis.exceptions import ClusterCrossSlotError

from support.hash_checks import check_index, collect_all
from support.hash_differences import FOREIGN, GARBAGE, KEPT_GARBAGE, TWO_ERRORS, is_allowed
from support.hash_model import ModelHashes, now_ms
from support.parity import (
    CALL,
    REFUSALS,
    SLACK_MS,
    Amounts,
    At,
    ParityMachine,
    call,
    long_ms,
    merged,
    outcome,
    resolved,
    short_ms,
)
from support.proof import tried
from workstealing.jobs import HashFieldExpiry
from workstealing.store.redis_versions import HashDataPersistOptions
from workstealing.structures import VolatileHashes

# The last one lies in the slot of the first.
KEYS = [b"h:0", b"h{1", b"{}2\xff", b"{h:0}\xff"]
FIELDS = [b"f", "g", b"\xff\x00", "\u00e9", ""]
VALUES = ["1", 5, 2.5, b"x", "", 2**53 + 1]
BAD_AMOUNTS = [-1, 2**46, 2**63, -(2**63), "abc", "1.5", "", "+1"]

TIMES = {"httl", "hpttl", "hexpiretime", "hpexpiretime", "ttl", "pttl", "expiretime", "pexpiretime"}
UNORDERED = {"hkeys", "hvals"}

keys = st.sampled_from(KEYS)
field = st.sampled_from(FIELDS)
fields = st.lists(field, min_size=1, max_size=4)
value = st.sampled_from(VALUES)
amounts = Amounts(
    seconds=BAD_AMOUNTS,
    ms=[*BAD_AMOUNTS, 2**46 - 1],
    at_seconds=BAD_AMOUNTS,
    at_ms=[*BAD_AMOUNTS, 2**46 - 1],
)
time_option = amounts.option()
condition = st.sampled_from([{}, {}, {"nx": True}, {"xx": True}, {"gt": True}, {"lt": True}])
persist_option = st.sampled_from(
    [{}, {}] + [{"data_persist_option": option} for option in HashDataPersistOptions]
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
    call("hset", keys, options=st.fixed_dictionaries({"mapping": mapping})),
    call("hset", keys, options=st.fixed_dictionaries({"items": items})),
    call("hmset", keys, mapping),
    call("hsetnx", keys, field, value),
    *[
        call("hsetex", keys, options=merged(_hsetex_values, persist_option, option))
        for option in (time_option, time_option, st.sampled_from([{}, {"keepttl": True}]))
    ],
    *[
        call("hgetex", keys, spread=fields, options=option)
        for option in (time_option, st.sampled_from([{}, {"persist": True}]))
    ],
    call("hgetdel", keys, spread=fields),
    call("hdel", keys, spread=st.lists(field, max_size=4)),
    call("hincrby", keys, field, st.sampled_from([1, -3, 2**62, "x", 1.5])),
    call("hincrbyfloat", keys, field, st.sampled_from([0.5, -2.25, 3, "x", "nan", "inf"])),
    call("hpersist", keys, spread=fields),
)
EXPIRES = st.one_of(
    call("hpexpire", keys, short_ms, spread=fields, options=condition),
    *[
        call(name, keys, amount, spread=st.lists(field, max_size=4), options=condition)
        for name, amount in (
            ("hexpire", amounts.seconds),
            ("hpexpire", amounts.ms),
            ("hexpireat", amounts.at_seconds),
            ("hpexpireat", amounts.at_ms),
        )
    ],
)
READS = st.one_of(
    *[call(name, keys, field) for name in ("hget", "hexists", "hstrlen")],
    *[call(name, keys) for name in ("hgetall", "hkeys", "hvals", "hlen", "exists")],
    *[call(name, keys) for name in ("ttl", "pttl", "expiretime", "pexpiretime")],
    *[call(name, keys, spread=fields) for name in ("httl", "hpttl", "hexpiretime", "hpexpiretime")],
    call("hmget", keys, st.lists(field, max_size=4)),
    call(
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
    call("hscan_iter", keys, options=st.sampled_from([{}, {"match": "f*"}, {"no_values": True}])),
    call(
        "hrandfield",
        keys,
        st.sampled_from([None, 0, 1, 2, 10, -1, -7, "x", 2**63, -(2**63)]),
        options=st.sampled_from([{}, {"withvalues": True}]),
    ),
)
WHOLES = st.one_of(
    call("expire", keys, st.sampled_from([100, 1000, 0, -1, 2**62, "x"]), options=condition),
    call(
        "pexpire", keys, st.one_of(short_ms, long_ms, st.sampled_from([0, "x"])), options=condition
    ),
    call("expireat", keys, long_ms.map(At), options=condition),
    call("pexpireat", keys, st.one_of(short_ms, long_ms).map(At), options=condition),
    *[call(name, keys) for name in ("persist", "delete", "unlink")],
    *[call(name, keys, keys) for name in ("rename", "renamenx", "copy")],
    call("copy", keys, keys, options=st.just({"replace": True})),
)


class Parity(ParityMachine):
    """Runs each command on a native and on an emulated side; subclasses say which."""

    native: ClassVar[Any]
    ours: ClassVar[VolatileHashes]
    sweeps: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.garbage: set[bytes] = set()
        self.situations: set[str] = set()

    def new_job(self) -> HashFieldExpiry:
        return HashFieldExpiry(self.ours, limit=3)

    @initialize()
    def wipe(self) -> None:
        super().wipe()
        self.garbage.clear()

    # Commands.

    @rule(made=WRITES)
    def write(self, made: Any) -> None:
        self.compare(*made)

    @rule(made=EXPIRES)
    def expire(self, made: Any) -> None:
        self.compare(*made)

    @rule(made=READS)
    def read(self, made: Any) -> None:
        self.compare(*made)

    @rule(made=WHOLES)
    def do_whole(self, made: Any) -> None:
        self.compare(*made)

    @rule(key=keys, gone=fields, lasting=fields)
    def fill(self, key: bytes, gone: list[Any], lasting: list[Any]) -> None:
        """Most commands need something to work on."""
        self.compare("hset", (key,), {"mapping": dict.fromkeys(FIELDS, 7)})
        self.compare("hexpire", (key, 1000, *lasting), {})
        self.compare("hpexpire", (key, 40, *gone), {})

    @rule(made=st.one_of(READS, WRITES, EXPIRES, WHOLES), gone=fields, all_go=st.booleans())
    def meet_garbage(self, made: Any, gone: list[Any], all_go: bool) -> None:
        """Fields expire, and a command that names their hash is the first to come by."""
        key = made[1][0]
        if all_go:
            self.compare("expire", (key, 1000), {})
        self.compare("hpexpire", (key, 30, *(FIELDS if all_go else gone)), {})
        self.advance()
        self.compare(*made)
        self.compare("hgetall", (key,), {})
        self.compare("ttl", (key,), {})

    @rule(made=st.one_of(READS, WRITES, EXPIRES, WHOLES), kind=st.sampled_from(["set", "delete"]))
    def meet_foreign(self, made: Any, kind: str) -> None:
        """Somebody overwrites the hash, or deletes it alone and leaves its deadlines behind."""
        key = made[1][0]
        self.settle()
        for client in (self.native, self.ours.client):
            client.delete(key) if kind == "delete" else client.set(key, "foreign")
        self.compare(*made)
        for client in (self.native, self.ours.client):
            if client.type(key) == b"string":
                client.delete(key)

    @invariant()
    def index_finds_garbage_in_time(self) -> None:
        check_index(self.ours)

    def teardown(self) -> None:
        self.advance()
        client = self.ours.client
        # On a cluster an older job notices a slot's first use within ten seconds.
        collect_all(self.new_job())
        now = now_ms()
        assert not any(client.zcount(key, "-inf", now) for key in client.keys("*:ttl:*"))
        # At the end of time nothing of ours is left but marks, whatever became of the hashes.
        far = VolatileHashes(client, self.ours.namespace, clock_shift_ms=2**46)
        collect_all(HashFieldExpiry(far))
        left = client.keys("*:ttl:*") + client.keys("*:due")
        assert not left, {key: client.zrange(key, 0, -1, withscores=True) for key in left}

    # Comparing.

    def before_calls(self, named: set[bytes]) -> None:
        """Look at the hashes that a call, or some, will meet."""
        self.situations = self._situations(named)
        # A draw is among these, however late on a busy machine it is compared.
        self.live: dict[bytes, bytes] = {}

    def before_call(self, name: str, args: Any) -> None:
        self.before_calls({key for key in args[:2] if key in KEYS})
        if name == "hrandfield":
            with contextlib.suppress(redis.ResponseError):
                self.live = self.ours.hgetall(args[0])

    def check(self, call: tuple[str, Any, Any], native: Any, ours: Any) -> None:
        name, args, options = call
        situations = self.situations
        if name == "hrandfield":
            native, ours = self._drawn(native, ours, (args, options), situations)
        if options.get("keepttl") and GARBAGE in situations and is_allowed(name, {KEPT_GARBAGE}):
            # The reply is the same, but the fields are not.
            self.wipe()
            return
        if is_same(name, native, ours):
            return
        both_failed = are_errors(native, ours)
        if both_failed:
            situations.add(TWO_ERRORS)
        assert is_allowed(name, situations), (
            f"{name}{args} {options}: Redis 8 says {native}, emulated {ours} ({situations})"
        )
        if not both_failed:
            self.wipe()

    def deadlines_passed(self) -> None:
        """Let the native side collect, or note where garbage is."""
        if isinstance(self.native, ModelHashes):
            return
        give_up = time.monotonic() + 120
        for side in self.collecting():
            while found := self._garbage(side):
                if not self.sweeps:
                    self.garbage |= found
                    return
                assert time.monotonic() < give_up, f"the server does not collect {found}"
                time.sleep(0.001)

    def collecting(self) -> list[Any]:
        """Return clients of the servers that collect expired fields themselves."""
        return [self.native]

    def native_deadlines(self, name: str, args: Any) -> list[int]:
        with contextlib.suppress(redis.ResponseError):
            if name.startswith("h") and args[2:]:
                found: list[int] = self.native.hpexpiretime(args[0], *args[2:])
                return found
            return [self.native.pexpiretime(args[0])]
        return []

    def _garbage(self, side: Any) -> set[bytes]:
        found = set()
        for key in KEYS:
            with contextlib.suppress(redis.ResponseError):
                live = len(side.hkeys(key))
                if side.hlen(key) != live or (not live and side.exists(key)):
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

    def _drawn(self, native: Any, emulated: Any, call: Any, situations: set[str]) -> Any:
        """Turn random draws into what can be compared: how many, from among what is live."""
        _, options = call
        if any(are_errors(outcome) for outcome in (native, emulated)):
            return native, emulated
        live = self.live
        if isinstance(emulated, list) and options.get("withvalues"):
            is_nested = any(isinstance(each, list) for each in emulated)
            pairs = emulated if is_nested else zip(emulated[::2], emulated[1::2], strict=True)
            assert set(map(tuple, pairs)) <= set(live.items())
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


class NativeParity(Parity):
    """Compares two servers that expire fields themselves; ours is a native namespace."""

    def collecting(self) -> list[Any]:
        return [self.native, self.ours.client]

    def index_finds_garbage_in_time(self) -> None:
        """There is no index."""


class PipelinedParity(Parity):
    """Makes each call by a pipeline."""

    def outcome_on(self, side: Any, name: str, args: Any, options: Any) -> Any:
        if name == "hscan_iter":
            return super().outcome_on(side, name, args, options)
        return outcome(Piped(side), name, args, options)


class Piped:
    """A client whose methods queue one command, and execute it."""

    def __init__(self, side: Any) -> None:
        self._side = side

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **options: Any) -> Any:
            with self._side.pipeline(transaction=False) as pipeline:
                getattr(pipeline, name)(*args, **options)
                (reply,) = pipeline.execute(raise_on_error=False)
            if isinstance(reply, Exception):
                raise reply
            return reply

        return ask


@contextlib.contextmanager
def _noted(outcomes: list[Any], at: int) -> Iterator[None]:
    """Put an error of the block in its place, as `outcome` tells it."""
    try:
        yield
    except REFUSALS as error:
        outcomes[at] = (type(error), str(error))


def as_outcome(reply: Any) -> Any:
    """Return a pipeline's reply as `outcome` tells it."""
    return (type(reply), str(reply)) if isinstance(reply, Exception) else reply


# The calls that a pipeline may make beside others: the replies of the rest depend on the moment, or
# on a look at the state just before.
TOGETHER = st.lists(
    st.one_of(READS, WRITES, EXPIRES, WHOLES).filter(
        lambda made: (
            made[0] not in ("hrandfield", "hscan_iter")
            and not {"gt", "lt", "keepttl"} & set(made[2])
        )
    ),
    min_size=2,
    max_size=6,
)


class ClusterParity(Parity):
    """Compares two clusters: single calls, and pipelines over several slots."""

    def outcome_on(self, side: Any, name: str, args: Any, options: Any) -> Any:
        found = super().outcome_on(side, name, args, options)
        if side is self.native and are_errors(found) and "same key slot" in found[1]:
            # redis-py itself refuses it, by another word than the server and we.
            return (ClusterCrossSlotError, "Keys in request don't hash to the same slot")
        return found

    @rule(calls=TOGETHER)
    def do_together(self, calls: list[Any]) -> None:
        """Make some calls by one pipeline, and on the native side one by one."""
        self.settle()
        made = [(name, *resolved(name, args, options)) for name, args, options in calls]
        self.before_calls({key for _, args, _ in made for key in args[:2] if key in KEYS})
        before = now_ms()
        native = [self.outcome_on(self.native, *each) for each in made]
        ours = self.piped(made)
        after = now_ms()
        if self.is_doubtful(before, after):
            self.wipe()
            return
        for each in made:
            self.note_deadline(*each, (before, after))
        tried(CALL, len(made))
        for each, one, other in zip(made, native, ours, strict=True):
            self.check(each, one, other)

    def piped(self, made: list[Any]) -> list[Any]:
        """Return the outcomes of calls on our side that one pipeline makes."""
        found: list[Any] = [None] * len(made)
        queued: list[int] = []
        with self.ours.pipeline(transaction=False) as pipeline:
            for at, (name, args, options) in enumerate(made):
                with _noted(found, at):
                    getattr(pipeline, name)(*args, **options)
                    queued.append(at)
            replies = pipeline.execute(raise_on_error=False)
        for at, reply in zip(queued, replies, strict=True):
            found[at] = as_outcome(reply)
        return found


class NativeClusterParity(NativeParity, ClusterParity):
    """Compares two clusters that expire fields themselves; ours is a native namespace."""


class Awaited:
    """A client whose calls are awaited at once, in an event loop of its own.

    Arguments:
        side: an asyncio client.
    """

    def __init__(self, side: Any, runner: asyncio.Runner) -> None:
        self._side, self._runner = side, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._side, name)

        def ask(*args: Any, **options: Any) -> Any:
            return self._runner.run(self._ask(name, method, args, options))

        return ask

    async def _ask(self, name: str, method: Any, args: Any, options: Any) -> Any:
        made = method(*args, **options)
        if name == "hscan_iter":
            return [each async for each in made]
        return await made

    def forget(self) -> None:
        """Forget the layout of the namespace."""
        self._side.forget()

    def piped(self, made: list[Any]) -> list[Any]:
        """Return the outcomes of calls that one pipeline makes."""
        return self._runner.run(self._piped(made))

    async def _piped(self, made: list[Any]) -> list[Any]:
        found: list[Any] = [None] * len(made)
        queued: list[int] = []
        async with self._side.pipeline(transaction=False) as pipeline:
            for at, (name, args, options) in enumerate(made):
                with _noted(found, at):
                    getattr(pipeline, name)(*args, **options)
                    queued.append(at)
            replies = await pipeline.execute(raise_on_error=False)
        for at, reply in zip(queued, replies, strict=True):
            found[at] = as_outcome(reply)
        return found


class AwaitedParity(ClusterParity):
    """Makes the calls on our side by an asyncio client; it looks by a blocking one.

    Attributes of a subclass: awaited: our side.
    """

    awaited: ClassVar[Awaited]

    @initialize()
    def wipe(self) -> None:
        super().wipe()
        self.awaited.forget()

    def outcome_on(self, side: Any, name: str, args: Any, options: Any) -> Any:
        return super().outcome_on(self.awaited if side is self.ours else side, name, args, options)

    def piped(self, made: list[Any]) -> list[Any]:
        return self.awaited.piped(made)


class NativeAwaitedParity(NativeParity, AwaitedParity):
    """The same for a native namespace."""


class DecodedParity(Parity):
    """Makes the calls by clients that decode; it looks by others.

    Attributes of a subclass: decoding: the two sides that decode, native first.
    """

    decoding: ClassVar[tuple[Any, Any]]

    @initialize()
    def wipe(self) -> None:
        super().wipe()
        self.decoding[1].forget()

    def outcome_on(self, side: Any, name: str, args: Any, options: Any) -> Any:
        native, ours = self.decoding
        found = outcome(native if side is self.native else ours, name, args, options)
        if name == "hrandfield":
            # The look at the live fields is by bytes.
            return encoded(found)
        return found


def encoded(reply: Any) -> Any:
    """Return a decoded reply of fields and values as bytes; an error as it is."""
    if isinstance(reply, str):
        return reply.encode("utf-8", "surrogateescape")
    return [encoded(each) for each in reply] if isinstance(reply, list) else reply


def are_errors(*outcomes: Any) -> bool:
    return all(isinstance(o, tuple) and len(o) == 2 and isinstance(o[0], type) for o in outcomes)


def is_same(name: str, native: Any, emulated: Any) -> bool:
    """Compare two replies; those about times may differ by what passed between the two calls."""
    if name in TIMES and not are_errors(native) and not are_errors(emulated):
        pairs = list(
            zip(native, emulated, strict=True) if isinstance(native, list) else [(native, emulated)]
        )
        slack = SLACK_MS if name.lstrip("h").startswith("p") else 1
        return all(n == e or (n >= 0 and e >= 0 and abs(n - e) <= slack) for n, e in pairs)
    if name in UNORDERED or (name == "hscan_iter" and not are_errors(native, emulated)):
        return (
            not are_errors(native)
            and not are_errors(emulated)
            and (sorted(native) == sorted(emulated))
        ) or native == emulated
    if name == "hscan" and not are_errors(native) and not are_errors(emulated):
        # The order and the cursor are each server's own; small hashes come in one piece.
        return (
            type(native[1]) is type(emulated[1])
            and sorted(native[1]) == sorted(emulated[1])
            and (not isinstance(native[1], dict) or native[1] == emulated[1])
        )
    return type(native) is type(emulated) and bool(native == emulated)
