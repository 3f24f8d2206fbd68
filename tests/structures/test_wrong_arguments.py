"""Public methods say in a sentence what is wrong with an argument, and send nothing then.

Each argument of each call in `CALLS` is replaced by each value in `VALUES` in turn. Some of them it
may take: then the call does whatever it does. All others are refused by an error of ours, or by
redis-py's DataError, that names the argument; never by an error from inside, or by the server.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff

import workstealing
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from support.table_source import TableSource
from workstealing import Fleet, Recruiter, jobs, store, structures
from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.metrics.ledger import Ledger
from workstealing.recruiting import Hooks, Job
from workstealing.recruiting.forecast import choose_rate, choose_rate_at_random
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    RedisStore,
    ShardedIck,
    ShuffleQueue,
    TimeShardQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.testing import ManualClock

pytestmark = pytest.mark.real

VALUES: list[Any] = [
    None,
    "x",
    "",
    b"x",
    "\udc80",
    -1,
    0,
    -0.5,
    2.5,
    math.nan,
    math.inf,
    True,
    2**70,
    10**400,
    [],
    [None],
    {},
    {"a": None},
    object(),
    "several",
    (1, 2, 3),
]

Made = Callable[[Any], Any]


def log(client: Any) -> Any:
    made = Log(client, "l")
    made.append(b"a", b"b")
    return made


def group(client: Any) -> Any:
    made = log(client).group("g", ack=True)
    made.read(1)
    return made


def keys(client: Any) -> Any:
    made = DurableKeys(client, namespace="d")
    made.open()
    return made


def hashes(client: Any) -> Any:
    made = VolatileHashes(client, namespace="h", backend="emulated")
    made.open()
    return made


def ick(client: Any) -> Any:
    made: Any = Ick(client, "i")
    made.add({"m": 1})
    return made


def sharded(client: Any) -> Any:
    made: Any = ShardedIck(client, "s", 2)
    made.add({"m": 1})
    return made


def shuffle(client: Any) -> Any:
    made: Any = ShuffleQueue(client, "q")
    made.write("t", {"a": 1})
    return made


def fair(client: Any) -> Any:
    made: Any = FairQueue(client, "f")
    made.write("t", {"a": 1})
    return made


def time_shards(client: Any) -> Any:
    made = TimeShardQueue(RedisStore(client), "t", 4, 60)
    made.open()
    return made


def tracked(client: Any) -> Any:
    made = TrackedSet(client, "c", TableSource(["a"]))
    made.open()
    return made


def made_of(kind: Any) -> Made:
    def package(client: Any) -> Any:
        return kind

    return package


def leased(client: Any) -> Any:
    return sharded(client).lease("c").__enter__()


def held_icks(client: Any) -> Any:
    return sharded(client).lease_all("c")


def recruiter(client: Any) -> Any:
    made = Recruiter()
    made.install(JOB, 0.1)
    made.install(Named("other"), 0.1)
    return made


class Named(Job):
    """A job that does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def perform(self, slice: Any) -> int:
        return 0


def nothing() -> None:
    """What is decorated."""


# Never connected to.
CLIENT = redis.Redis(port=1)
STORE = RedisStore(CLIENT)
JOB, HOOKS, RANDOM, FUNCTION = Named("j"), Hooks(), random.random, nothing
JOB_OPTIONS = {"dry_run": False, "name": "n", "random": random.random}
HASHES, KEYS = VolatileHashes(CLIENT, namespace="h"), DurableKeys(CLIENT, namespace="d")
ICK, SHUFFLE, TIMES = Ick(CLIENT, "i"), ShuffleQueue(CLIENT, "q"), TimeShardQueue(STORE, "t", 6, 60)
FAIR = FairQueue(CLIENT, "f")
LOG, TRACKED = Log(CLIENT, "l"), TrackedSet(CLIENT, "c", TableSource())

# What makes the object, the method, its arguments, and by name.
CALLS: list[tuple[Made, str, tuple[Any, ...], dict[str, Any]]] = [
    (log, "append", (b"x",), {"keep": 10, "producer": "p", "id": "i"}),
    (log, "append_each", ([b"x"], ["i"], "p"), {"keep": 10}),
    (log, "read", (0,), {"count": 1, "block": 0}),
    (log, "read_range", (0,), {"count": 1, "block": 0}),
    (
        log,
        "group",
        ("g",),
        {"start": "first", "ack": True, "lease": 60.0, "max_attempts": 5},
    ),
    (log, "evict", (0,), {}),
    (log, "evict", (), {"keep": 1}),
    (log, "iterate", (0, 1), {"reverse": False, "prefetch": 1}),
    (group, "read", (1,), {"block": 0, "member": "m"}),
    (group, "ack", (0,), {}),
    (group, "seek", (0,), {}),
    (group, "pending", (10,), {}),
    (group, "dead", (10,), {}),
    (group, "revive", (0,), {}),
    (group, "discard", (0,), {}),
    (keys, "acquire", ("n", 10.0), {}),
    (keys, "release", ("n", 1), {}),
    (keys, "extend", ("n", 1, 10.0), {}),
    (keys, "lock", ("n", 10.0), {}),
    (ick, "add", ({"m": 1.0},), {}),
    (ick, "add", ({"m": 1.0},), {"quiet": 1.0, "at_most": 2.0}),
    (ick, "reserve", (1,), {"backwash": False}),
    (ick, "exchange", (1, "m"), {"backwash": False, "token": None}),
    (ick, "ack", ("m",), {"token": None}),
    (ick, "dead", (10,), {}),
    (ick, "revive", ("m",), {}),
    (ick, "discard", ("m",), {}),
    (ick, "delete", (), {"unlink": True}),
    (sharded, "add", ({"m": 1.0},), {}),
    (shuffle, "write", ("t", {"a": 1}), {"deadline": None, "tracking_id": None, "account": None}),
    (shuffle, "write_many", ([],), {}),
    (shuffle, "read", ("g", "c"), {"block": 0, "prefer_stream": None}),
    (shuffle, "read_many", ("g", "c", 1), {"block": 0, "prefer_stream": None}),
    (shuffle, "exchange", (), {"group": "g", "consumer": "c", "n": 1, "block": 0}),
    (shuffle, "ack", (), {}),
    (shuffle, "cancel", ("x",), {}),
    (shuffle, "dead", ("g", 10), {}),
    (shuffle, "revive", ("g", "3-17000-0"), {}),
    (shuffle, "discard", ("g", "3-17000-0"), {}),
    (shuffle, "stats", ("g", 10), {}),
    (shuffle, "streams_of", ("t",), {}),
    (
        fair,
        "write",
        ("t", {"a": 1}),
        {"deadline": None, "tracking_id": None, "account": None, "priority": 0, "delay": 0.0}
        | {"dedupe": None, "dedupe_ended": False},
    ),
    (fair, "write", ("t", {"a": 1}), {"ttl": None}),
    (fair, "write_many", ([],), {}),
    (fair, "read", ("c",), {"block": 0}),
    (fair, "read_many", ("c", 1), {"block": 0}),
    (fair, "exchange", (), {"consumer": "c", "n": 1, "block": 0}),
    (fair, "exchange", (None,), {"consumer": "c"}),
    (fair, "ack", (None,), {}),
    (fair, "nack", (None,), {"delay": 0.0}),
    (fair, "extend", (None,), {}),
    (fair, "cancel", ("x",), {}),
    (fair, "overdue", (10, 0), {}),
    (fair, "peek", ("t", 10), {}),
    (fair, "purge", ("t",), {}),
    (fair, "dead", (10,), {}),
    (fair, "revive", ("0-0-0",), {}),
    (fair, "discard", ("0-0-0",), {}),
    (fair, "stats", (10,), {}),
    (fair, "accounts", (10,), {}),
    (fair, "explain_wait", ("t",), {}),
    (
        fair,
        "set_rule",
        ("t",),
        {"weight": 1, "max_in_flight": 1, "rate": 1, "burst": 1, "estimate": 1, "max_length": 1}
        | {"lower": 1, "paused": False},
    ),
    (fair, "remove_rule", ("t",), {}),
    (fair, "pause", ("t",), {}),
    (fair, "resume", ("t",), {}),
    (time_shards, "put", ("m", None), {}),
    (time_shards, "put_many", ([],), {"due": None}),
    (time_shards, "take", ("c",), {"lease": 60.0, "drain_all": False}),
    (time_shards, "take_many", ("c", 1), {"lease": 60.0, "drain_all": False}),
    (time_shards, "dead", (10,), {}),
    (tracked, "track", (["a"],), {}),
    (tracked, "untrack", (["a"],), {}),
    (tracked, "is_tracked", ("a",), {}),
    (tracked, "are_tracked", (["a"],), {}),
    (tracked, "drift", (10,), {"confidence": 0.95, "seconds": 5.0}),
    (sharded, "lease", ("c",), {"lease": 30.0, "wait": 0.0}),
    (sharded, "lease_all", ("c",), {"lease": 30.0}),
    (sharded, "resize", (2,), {}),
    (leased, "reserve", (1,), {"backwash": False}),
    (leased, "exchange", (1, "m"), {"backwash": False}),
    (leased, "ack", ("m",), {}),
    (leased, "ack_all", ("1",), {}),
    (held_icks, "ack_all", ({0: "1"},), {}),
    (held_icks, "reserve", ({0: 1},), {}),
    (sharded, "reserved", (0, "1", 0), {}),
    (shuffle, "ack", (None,), {}),
    (shuffle, "nack", (None,), {"delay": 0.0}),
    (shuffle, "extend", (None,), {}),
    (time_shards, "ack", ("x",), {}),
    (time_shards, "cancel", ("x",), {}),
    (time_shards, "release", ("x",), {"due": None}),
    (time_shards, "extend", (None,), {"lease": 60.0}),
    (time_shards, "revive", ("x",), {}),
    (time_shards, "discard", ("x",), {}),
    (made_of(structures), "Log", (CLIENT, "l"), {"block": 10, "codec": None, "cache_blocks": 1}),
    (made_of(structures), "Ick", (CLIENT, "i"), {}),
    (made_of(structures), "ShardedIck", (CLIENT, "s", 2), {}),
    (made_of(structures), "DurableKeys", (CLIENT,), {"namespace": "d"}),
    (made_of(structures), "VolatileHashes", (CLIENT,), {"namespace": "h", "backend": "auto"}),
    (
        made_of(structures),
        "ShuffleQueue",
        (CLIENT, "q"),
        {"streams": 8, "streams_per_tenant": 2, "max_attempts": 5},
    ),
    (
        made_of(structures),
        "FairQueue",
        (CLIENT, "f"),
        {"lease": 60.0, "max_attempts": 5, "ttl": 60.0, "notify": True, "namespace": "n"},
    ),
    (made_of(structures), "RedisStore", (CLIENT,), {}),
    (made_of(structures), "TimeShardQueue", (STORE, "t", 4, 60), {}),
    (made_of(structures), "TrackedSet", (CLIENT, "c"), {"source": None, "sub_sets": 2}),
    (recruiter, "install", (JOB, 0.1), {"seconds": 1.0}),
    (recruiter, "job", (0.1,), {"name": "n", "limit": 1, "seconds": 1.0}),
    (recruiter, "set_rate", ("j", 0.1), {}),
    (recruiter, "pause", ("j",), {}),
    (recruiter, "resume", ("j",), {}),
    (recruiter, "perform", ("j",), {"limit": 1, "seconds": 1.0}),
    (recruiter, "dry_run", ("j",), {"limit": 1, "seconds": 1.0}),
    (recruiter, "uninstall", ("other",), {}),
    (recruiter, "given_rate", ("j",), {}),
    (recruiter, "add_hook", (HOOKS,), {}),
    (recruiter, "reraise", (KeyError,), {}),
    (recruiter, "use_random", (RANDOM,), {}),
    (recruiter, "enlists", (FUNCTION,), {"when": None}),
    (made_of(workstealing), "Recruiter", (), {"seconds": 0.01}),
    (made_of(workstealing), "connect", ("redis://localhost:1/0",), {}),
    (made_of(store), "attempt", (CLIENT, "k"), {"slice": None}),
    (made_of(jobs), "HashFieldExpiry", (HASHES,), {"limit": 5, **JOB_OPTIONS}),
    (made_of(jobs), "KeyExpiry", (KEYS,), {"limit": 5, **JOB_OPTIONS}),
    (
        made_of(jobs),
        "AdoptHashes",
        (HASHES, "hash:*"),
        {"sorted_sets": "zset:*", "limit": 5, "name": "n", "random": RANDOM},
    ),
    (
        made_of(jobs),
        "MigrateToEmulated",
        (HASHES, "h:*"),
        {"limit": 5, "name": "n", "random": RANDOM},
    ),
    (made_of(jobs), "MigrateToNative", (HASHES,), {"limit": 5, "name": "n", "random": RANDOM}),
    (made_of(jobs), "IckReaper", (ICK, 10.0), {"limit": 5, "max_attempts": 5, **JOB_OPTIONS}),
    (
        made_of(jobs),
        "ShuffleQueueReaper",
        (SHUFFLE,),
        {"limit": 5, "lease": 1.0, "consumer_idle": 1.0, **JOB_OPTIONS},
    ),
    (made_of(jobs), "FairQueueReaper", (FAIR,), {"limit": 5, "consumer_idle": 1.0, **JOB_OPTIONS}),
    (made_of(jobs), "QueueExpiry", (SHUFFLE,), {"limit": 5, **JOB_OPTIONS}),
    (made_of(jobs), "TimeShardSweeper", (TIMES,), {"limit": 5, "max_attempts": 5, **JOB_OPTIONS}),
    (
        made_of(jobs),
        "LogCompactor",
        (LOG,),
        {"limit": 1, "cold": 1.0, "codec": "zlib", "level": 6, "idle": 0, "most_bytes": 1000}
        | JOB_OPTIONS,
    ),
    (
        made_of(jobs),
        "LogTrimmer",
        (LOG,),
        {"limit": 1, "max_age": 1.0, "max_entries": 1, "max_bytes": 1, "spare_groups": False}
        | JOB_OPTIONS,
    ),
    (made_of(jobs), "TrackQueued", (TRACKED,), {"limit": 5, "name": "n"}),
    (made_of(jobs), "UntrackDone", (TRACKED,), {"limit": 5, "name": "n", "random": RANDOM}),
]


ASYNC: dict[Made, Made] = {
    log: lambda client: structures.AsyncLog(client, "l"),
    group: lambda client: structures.AsyncLog(client, "l").group("g", ack=True),
    keys: lambda client: structures.AsyncDurableKeys(client, namespace="d"),
    ick: lambda client: structures.AsyncIck(client, "i"),
    sharded: lambda client: structures.AsyncShardedIck(client, "s", 2),
    shuffle: lambda client: structures.AsyncShuffleQueue(client, "q"),
    fair: lambda client: structures.AsyncFairQueue(client, "f"),
    time_shards: lambda client: structures.AsyncTimeShardQueue(
        structures.AsyncRedisStore(client), "t", 4, 60
    ),
    tracked: lambda client: structures.AsyncTrackedSet(client, "c", TableSource(["a"])),
}


def cases() -> Iterator[Any]:
    for make, method, args, options in CALLS:
        for place in (*range(len(args)), *options):
            name = f"{make.__name__}.{method}[{place}]"
            yield pytest.param((make, method, args, options, place), id=name)


def replaced(
    args: tuple[Any, ...], options: dict[str, Any], place: int | str, value: Any
) -> tuple[list[Any], dict[str, Any]]:
    some, named = list(args), dict(options)
    if isinstance(place, int):
        some[place] = value
    else:
        named[place] = value
    return some, named


def assert_clear(error: Exception, call: Any, place: int | str, value: Any) -> None:
    """The error is one sentence that says which argument it is about, by name or by value."""
    said = str(error)
    names = list(inspect.signature(call).parameters)
    name = place if isinstance(place, str) else names[min(place, len(names) - 1)]
    # What the words of the error may call it.
    known = {name, name.rstrip("s"), repr(value), type(value).__name__, repr(value)[1:-1]}
    known |= (
        {text for each in value for text in (repr(each),)} if isinstance(value, tuple) else set()
    )
    known |= ALSO.get((getattr(call, "__name__", ""), name), set())
    assert any(each and each in said for each in known), said
    assert "\n" not in said
    assert said
    assert not said.endswith(".")


# An argument that is right, but is not looked at before another thing that is wrong in every case.
ALSO = {
    ("drift", "sample"): {"cannot draw ids"},
    ("extend", "lease"): {"no lease"},
    ("release", "due"): {"no id of a message"},
    ("nack", "delay"): {"no message"},
    ("exchange", "consumer"): {"no message"},
    ("dry_run", "limit"): {"has no dry run"},
    ("dry_run", "seconds"): {"has no dry run"},
    ("install", "seconds"): {"installed already"},
    ("install", "rate"): {"installed already"},
    ("connect", "url"): {"Redis URL"},
    ("revive", "ids"): {"id of a message"},
    ("discard", "ids"): {"id of a message"},
}


def commands_of(client: Any) -> int:
    """Return how many commands the server has had, without those of connections and of this."""
    ours = ("cmdstat_info", "cmdstat_hello", "cmdstat_client", "cmdstat_select", "cmdstat_auth")
    found = client.info("commandstats")
    return sum(each["calls"] for name, each in found.items() if not name.startswith(ours))


def refusal(call: Any, args: list[Any], options: dict[str, Any]) -> Exception | None:
    """Return the error by which a call refuses its arguments; any but ours is raised."""
    try:
        result = call(*args, **options)
        if inspect.isgenerator(result):
            list(result)
    except (ConfigurationError, redis.DataError) as error:
        return error
    except WorkStealingError:
        # An answer: the lease is somebody else's, say.
        return None
    return None


@pytest.mark.parametrize("case", list(cases()))
def test_a_wrong_argument_is_said_and_nothing_is_sent(redis7: RedisServer, case: Any) -> None:
    make, method, args, options, place = case
    client = redis7.client()
    made = make(client)
    call = getattr(made, method)
    before = commands_of(client)
    for value in VALUES:
        some, named = replaced(args, options, place, value)
        error = refusal(call, some, named)
        now = commands_of(client)
        if error is not None:
            assert now == before, (value, error)
            assert_clear(error, call, place, value)
        before = now


@pytest.mark.parametrize("case", [each for each in cases() if each.values[0][0] in ASYNC])
def test_the_asyncio_forms_say_the_same(case: Any) -> None:
    make, method, args, options, place = case
    form = ASYNC[make]

    async def run() -> None:
        # Nobody listens there: whatever is sent is a fault of the connection.
        client = redis.asyncio.Redis(
            port=1, retry=redis.asyncio.retry.Retry(NoBackoff(), 0), protocol=2
        )
        call = getattr(form(client), method)
        for value in VALUES:
            some, named = replaced(args, options, place, value)
            try:
                result = call(*some, **named)
                if hasattr(result, "__aiter__"):
                    async for _ in result:
                        break
                elif inspect.isawaitable(result):
                    await result
            except redis.ConnectionError:
                continue
            except (WorkStealingError, redis.DataError) as error:
                assert_clear(error, call, place, value)
        await client.aclose()

    asyncio.run(run())


def test_what_is_missing_or_too_much_is_said_by_python_at_the_call() -> None:
    for make, method, args, options in CALLS:
        if make not in ASYNC:
            continue
        call = getattr(ASYNC[make](redis.asyncio.Redis(port=1)), method)
        with pytest.raises(TypeError, match=rf"{method}\(\)|unexpected keyword"):
            call(*args, **options, no_such_argument=1)


def inspection(structure: Any) -> Callable[[Any], Any]:
    """Return a call that asks a structure for its size."""
    return lambda seconds: structure.inspect(structure.size_steps(), seconds)


def adopting(client: Any) -> Any:
    return jobs.AdoptHashes(hashes(client), "hash:*", ttl=60)


def adoption_report(client: Any) -> Callable[[Any], Any]:
    job = adopting(client)
    return lambda seconds: job.report(seconds=seconds)


def sweeper(client: Any) -> Any:
    return jobs.TimeShardSweeper(time_shards(client))


# Each ready-made job, by the name of its class.
BACKLOGS: dict[str, Made] = {
    "AdoptHashes": adopting,
    "CeleryLeftovers": jobs.CeleryLeftovers,
    "FairQueueReaper": lambda client: jobs.FairQueueReaper(FairQueue(client, "q")),
    "FamilyLeftovers": lambda client: jobs.FamilyLeftovers(client, "old:*", 60),
    "FeastLeftovers": lambda client: jobs.FeastLeftovers(client, "p", {"v": (["f"], 60)}),
    "FleetRebalance": lambda client: jobs.FleetRebalance(hashes(Fleet({"a": client})), None),
    "HashFieldExpiry": lambda client: jobs.HashFieldExpiry(hashes(client)),
    "HueyLeftovers": lambda client: jobs.HueyLeftovers(client, "q"),
    "IckReaper": lambda client: jobs.IckReaper(ick(client), 60),
    "KeyExpiry": lambda client: jobs.KeyExpiry(keys(client)),
    "LangGraphLeftovers": jobs.LangGraphLeftovers,
    "Leftovers": lambda client: jobs.TagSetLeftovers(client, "set:*"),
    "LogCompactor": lambda client: jobs.LogCompactor(log(client)),
    "LogTrimmer": lambda client: jobs.LogTrimmer(log(client), max_entries=1),
    "MigrateToEmulated": lambda client: jobs.MigrateToEmulated(hashes(client), "h:*"),
    "MigrateToNative": lambda client: jobs.MigrateToNative(hashes(client)),
    "NativeFieldAudit": lambda client: jobs.NativeFieldAudit(hashes(client), "h:*"),
    "QueueExpiry": lambda client: jobs.QueueExpiry(shuffle(client)),
    "RqLeftovers": jobs.RqLeftovers,
    "ShuffleQueueReaper": lambda client: jobs.ShuffleQueueReaper(shuffle(client)),
    "StreamLeftovers": lambda client: jobs.StreamLeftovers(client, "stream:*"),
    "TagSetLeftovers": lambda client: jobs.TagSetLeftovers(client, "set:*"),
    "TimeShardSweeper": sweeper,
    "TrackQueued": lambda client: jobs.TrackQueued(tracked(client)),
    "UntrackDone": lambda client: jobs.UntrackDone(tracked(client)),
}

# Calls that take a duration alone; those with further options stand in CALLS.
DURATIONS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    **{
        f"{name}.backlog": lambda client, make=make: make(client).backlog
        for name, make in BACKLOGS.items()
    },
    "Job.backlog": lambda _: JOB.backlog,
    "Job.within_reach": lambda _: JOB.within_reach,
    "TimeShardSweeper.within_reach": lambda client: sweeper(client).within_reach,
    "AdoptHashes.report": adoption_report,
    "Ick.inspect": lambda client: inspection(ick(client)),
    "TimeShardQueue.inspect": lambda client: inspection(time_shards(client)),
    "Ledger.flush": lambda client: Ledger(client).flush,
    "Ledger.close": lambda client: Ledger(client).close,
    "ManualClock.advance": lambda _: ManualClock().advance,
    "choose_rate": lambda _: lambda lag: choose_rate(100.0, 1.0, 25, lag),
    "choose_rate_at_random": lambda _: lambda lag: choose_rate_at_random(100.0, 1.0, 25, lag),
}


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(redis7: RedisServer, name: str) -> None:
    client = redis7.client()
    call = DURATIONS[name](client)
    for right in (5, 5.0, dt.timedelta(seconds=5)):
        call(right)
    before = commands_of(client)
    for wrong in (-1, dt.timedelta(seconds=-1), "5", math.nan, None, True):
        with pytest.raises(ConfigurationError, match=r"=.* is no such time: give a number of sec"):
            call(wrong)
    assert commands_of(client) == before


def test_a_users_job_is_given_a_number_of_seconds() -> None:
    class Noting(Named):
        given: Any = None

        def backlog(self, seconds: Any = 5.0) -> None:
            self.given = seconds

    job = Noting("noting")
    job.within_reach(dt.timedelta(minutes=1))
    assert job.given == 60.0


def test_every_ready_made_job_is_asked_for_its_backlog() -> None:
    made = {name for name in jobs.__all__ if hasattr(getattr(jobs, name), "backlog")}
    assert made - {"SqlExpiry"} == set(BACKLOGS)
