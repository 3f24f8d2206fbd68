"""One unit of items: a survey, a dry run, a backlog and the slices count the same garbage alike."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.leftover_jobs import age_sightings
from support.many_owners import reply_of_celery
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.table_source import TableSource
from workstealing import jobs
from workstealing.errors import Aborted
from workstealing.jobs import (
    AdoptHashes,
    HashFieldExpiry,
    IckReaper,
    KeyExpiry,
    Leftovers,
    LogCompactor,
    LogTrimmer,
    MigrateToNative,
    QueueExpiry,
    StreamLeftovers,
    TrackQueued,
    UntrackDone,
)
from workstealing.jobs.celery_leftovers import ReplyLists
from workstealing.jobs.family_leftovers import (
    DeadTags,
    KeysWithoutTtl,
    OldScores,
    PastFields,
    PastHashes,
)
from workstealing.jobs.leftovers import Rule
from workstealing.jobs.library_leftovers import HueyResults
from workstealing.jobs.rq_leftovers import DeadWorkers
from workstealing.jobs.stream_leftovers import (
    AbandonedEntries,
    AcknowledgedEntries,
    EntriesBeyond,
    IdleConsumers,
    UnreadGroups,
)
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.job import Job, counted, would_handle
from workstealing.structures import (
    DurableKeys,
    FairQueue,
    Ick,
    Log,
    ShuffleQueue,
    TrackedSet,
    VolatileHashes,
)
from workstealing.survey import Survey, report_of

DAY = 86_400.0
LATE_MS = 7_200_000


def acknowledged(client: Any, *, pending: int = 0) -> int:
    """Let a group acknowledge 800 of 1,200 entries; return how many it has no use for."""
    client.xgroup_create("events", "mailers", id="0", mkstream=True)
    for number in range(1_200):
        client.xadd("events", {"n": number}, id=f"{number + 1}-0")
    ((_, page),) = client.xreadgroup("mailers", "one", {"events": ">"}, count=800)
    kept = {page[pending][0]} if pending else set()
    client.xack("events", "mailers", *(each for each, _ in page if each not in kept))
    return pending or 800


def idle_consumers(client: Any) -> int:
    """Leave idle consumers in two groups, and one that has something pending."""
    client.xadd("events", {"n": 1})
    for group, number in (("mailers", 130), ("printers", 20)):
        client.xgroup_create("events", group, id="0")
        for each in range(number):
            client.xgroup_createconsumer("events", group, f"c{each}")
    client.xreadgroup("mailers", "busy", {"events": ">"})
    time.sleep(1.1)
    return 150


def abandoned(client: Any) -> int:
    """Let a consumer be given entries, and never come back."""
    client.xgroup_create("events", "mailers", id="0", mkstream=True)
    for number in range(70):
        client.xadd("events", {"n": number})
    client.xreadgroup("mailers", "dead", {"events": ">"}, count=40)
    time.sleep(1.1)
    return 40


def beyond(client: Any) -> int:
    """Write 100 entries, of which the bound keeps 60."""
    for number in range(100):
        client.xadd("events", {"n": number})
    return 40


def tags(client: Any) -> int:
    """Write tag sets of which each third member names a key that is there."""
    members = [f"page:{number}" for number in range(300)]
    client.sadd("conj:shop:id=1", *members[:200])
    client.sadd("conj:shop:id=2", *members[200:])
    client.mset(dict.fromkeys(members[::3], 1))
    return 200


def replies(client: Any) -> int:
    """Write reply lists of several messages each."""
    for number in range(30):
        asker = str(uuid.UUID(int=number))
        client.rpush(f"{asker}.reply.celery.pidbox", *[reply_of_celery(asker)] * 3)
    return 30


def workers(client: Any) -> int:
    """Name workers without a hash."""
    client.sadd("rq:workers", *(f"rq:worker:{number}" for number in range(40)))
    return 40


def scores(client: Any) -> int:
    """Write limiters with members before and within the window of a day."""
    now = time.time()
    for user in range(3):
        old = {f"old{each}": now - 2 * DAY - each for each in range(150)}
        client.zadd(f"limit:{user}", {**old, "new": now})
    return 450


def fields(client: Any) -> int:
    """Write a pool of sessions of which 120 are over."""
    client.hset("pool", mapping={f"s{each}": 1 for each in range(120)})
    client.hset("pool", mapping={f"t{each}": time.time() + DAY for each in range(30)})
    return 120


def hashes(client: Any) -> int:
    """Write carts that are over, with several fields each."""
    for number in range(60):
        client.hset(f"cart:{number}", mapping={"ends": 1, "item": number})
    return 60


def results(client: Any) -> int:
    """Write results of Huey, and fields that are none."""
    for number in range(70):
        client.hset("huey.results.shop", str(uuid.UUID(int=number)), b"result")
    client.hset("huey.results.shop", "a.lock", b"1")
    return 70


def endless(client: Any) -> int:
    """Write keys with and without a time to live."""
    for number in range(150):
        client.set(f"draft:{number}", "x")
        client.set(f"draft:{number}:short", "x", ex=600)
    return 150


@dataclass(frozen=True)
class Case:
    """Garbage of a rule, and how it is counted. Fields: in_survey: whether the survey asks it."""

    rule: Callable[[], Rule]
    fill: Callable[[Any], int]
    unit: str
    in_survey: bool = True
    options: tuple[tuple[str, Any], ...] = ()


CASES = {
    "acknowledged": Case(lambda: AcknowledgedEntries("*"), acknowledged, "entries"),
    "one is pending": Case(
        lambda: AcknowledgedEntries("*"),
        lambda client: acknowledged(client, pending=650),
        "entries",
    ),
    "beyond": Case(lambda: EntriesBeyond("*", most=60), beyond, "entries"),
    "consumers": Case(lambda: IdleConsumers("*", 1), idle_consumers, "consumers", in_survey=False),
    "tags": Case(lambda: DeadTags("conj:*"), tags, "members"),
    "replies": Case(ReplyLists, replies, "keys"),
    "workers": Case(DeadWorkers, workers, "members"),
    "scores": Case(
        lambda: OldScores("*", DAY, name="families.old_scores.seconds"), scores, "members"
    ),
    "past fields": Case(lambda: PastFields("pool", float), fields, "fields", in_survey=False),
    "past hashes": Case(lambda: PastHashes("cart:*", "ends"), hashes, "keys", in_survey=False),
    "results": Case(lambda: HueyResults("shop", 30 * DAY), results, "fields"),
    "no TTL": Case(lambda: KeysWithoutTtl("draft:*"), endless, "keys", options=(("ttl", 600),)),
}


def lap(job: Leftovers, limit: int) -> int:
    """Do the slices of one lap of a dry run; return what they have counted."""
    (rule,) = job.rules
    total = 0
    place = job.place_key(rule, None, dry_run=True)
    job.restart()
    while job.client.hget(place, "laps") != b"1":
        total += job.perform(Slice(limit, 60.0))
    return total


def removed(job: Leftovers, limit: int) -> int:
    """Do slices until a few in a row find nothing; return what they have removed."""
    total = idle = 0
    while idle < 5:
        job.restart()
        try:
            done = job.perform(Slice(limit, 60.0))
        except Aborted:
            continue
        assert done <= limit
        total, idle = total + done, 0 if done else idle + 1
    return total


@pytest.mark.parametrize("name", CASES)
def test_all_count_alike(name: str, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    case, client = CASES[name], redis7.client(protocol=2)
    monkeypatch.setattr(EntriesBeyond, "asked", ({"pattern": "*", "most": 60},))
    rule = case.rule()
    planted = case.fill(client)
    if case.in_survey:
        survey = Survey(client, load=1.0)
        survey.run()
        report = json.loads(json.dumps(report_of(survey, 100.0)))
        found = [one for each in report["families"] for one in each["findings"]]
        (mine,) = [each for each in found if each["rule"] == rule.name and each["items"]]
        assert (mine["items"], mine["unit"], mine["is_exact"]) == (planted, case.unit, True)
        assert mine["items_interval"] == [planted, planted]
    dry, wet = (
        Leftovers(client, [rule], name="unit", dry_run=each, **dict(case.options))
        for each in (True, False)
    )
    assert dry.unit == wet.unit == rule.unit == case.unit
    if rule.certainty.gap:
        assert lap(dry, 100) == 0
        age_sightings(client, int(rule.certainty.gap) + 60)
    assert lap(dry, 100) == lap(dry, 7) == planted
    backlog = dry.backlog(60.0)
    assert (backlog.count, backlog.what, backlog.exact) == (planted, case.unit, True)
    assert removed(wet, 60) == planted
    assert wet.backlog(60.0).count == 0


@pytest.mark.slow
@pytest.mark.parametrize("on", ["redis62", "redis7", "redis8", "valkey8"])
def test_entries_are_counted_with_and_without_a_lag(
    on: str, request: pytest.FixtureRequest
) -> None:
    client = request.getfixturevalue(on).client(protocol=2)
    for pending in (0, 450, 3):
        client.delete("events")
        planted = acknowledged(client, pending=pending)
        dry, wet = (
            Leftovers(client, [AcknowledgedEntries("events")], name="u", dry_run=each)
            for each in (True, False)
        )
        assert lap(dry, 100) == planted
        assert removed(wet, 100) == planted


def test_a_number_that_is_estimated_lies_between_its_bounds(redis7: RedisServer) -> None:
    client = redis7.client(protocol=2)
    client.xgroup_create("events", "mailers", id="0", mkstream=True)
    with client.pipeline(transaction=False) as pipe:
        for number in range(6_000):
            pipe.xadd(
                "events", {"n": number}, id=f"{1_000_000 + number * (1 + number % 3)}-{number}"
            )
        with pytest.raises(Exception, match="smaller"):
            pipe.execute()
    length = client.xlen("events")
    ((_, page),) = client.xreadgroup("mailers", "one", {"events": ">"}, count=length - 700)
    held = page[len(page) // 2][0]
    client.xack("events", "mailers", *(each for each, _ in page if each != held))
    survey = Survey(client, load=1.0)
    survey.run()
    ((found,),) = [
        [one for one in each["findings"] if one["rule"] == "streams.acknowledged"]
        for each in report_of(survey, 100.0)["families"]
    ]
    truth = len(page) // 2
    low, high = found["items_interval"]
    assert not found["is_exact"]
    assert low <= truth <= high < length
    assert low <= found["items"] <= high


def test_reports_count_what_is_pending_and_remove_nothing(redis7: RedisServer) -> None:
    client = redis7.client(protocol=2)
    planted = abandoned(client)
    rules = [AbandonedEntries("*", 1), UnreadGroups("*", 1)]
    assert [each.unit for each in rules] == ["entries", "streams"]
    dry, wet = (Leftovers(client, rules[:1], name="u", dry_run=each) for each in (True, False))
    assert lap(dry, 10) == dry.backlog(60.0).count == planted
    assert wet.perform(Slice(100, 60.0)) == wet.backlog(60.0).count == 0
    assert client.xpending("events", "mailers")["pending"] == planted


def test_the_ledger_and_the_figures_get_what_a_slice_removed(redis7: RedisServer) -> None:
    client = redis7.client(protocol=2)
    planted = acknowledged(client)
    recruiter = Recruiter()
    job = StreamLeftovers(client, "events", dry_run=False)
    recruiter.install(job, rate=0.1, seconds=60.0)
    assert recruiter.dry_run(job.name) == planted
    recruiter.perform(job.name, seconds=60.0)
    figures = recruiter.stats()["jobs"][job.name]
    assert (figures["items"], figures["unit"]) == (planted, "entries") == (800, "entries")
    assert client.xlen("events") == 400


def test_words_for_people() -> None:
    assert counted(1, "entries") == "1 entry"
    assert counted(1, "keys") == "1 key"
    assert counted(1_200, "entries") == "1,200 entries"
    assert counted(1, "entries and consumers") == "1 entries and consumers"
    job = StreamLeftovers(_client(), "s")
    assert would_handle(job, 800) == "a slice would handle 800 entries"
    assert would_handle(job, 5_000) == (
        "5,000 entries are where a slice looks, which would handle 1,000 of them"
    )


def _client() -> Any:
    import redis

    return redis.Redis()


# ---- the jobs of structures ----------------------------------------------------------------------


def expired_fields(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Let fields expire."""
    client = server.client()
    for number in range(30):
        fresh = VolatileHashes(client, "u", backend="emulated")
        fresh.hsetex(f"h:{number}", mapping={"a": 1, "b": 2}, ex=60)
    late = VolatileHashes(client, "u", clock_shift_ms=LATE_MS)
    return lambda **options: HashFieldExpiry(late, **options), 60


def overdue_keys(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Let keys be overdue."""
    client = server.client()
    for number in range(50):
        DurableKeys(client, "u").set(f"k:{number}", 1, ex=60)
    late = DurableKeys(client, "u", clock_shift_ms=LATE_MS)
    return lambda **options: KeyExpiry(late, **options), 50


def idle_queues(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Let queues be idle: the keys of each are its streams, its group's, and its own."""
    client = server.client()
    before = client.dbsize()
    for number in range(4):
        queue: ShuffleQueue = ShuffleQueue(client, f"q{number}", ttl=60.0, streams=4)
        for tenant in range(8):
            queue.write(f"t{tenant}", {"a": "b"})
        queue.read("g", "c")
    late = ShuffleQueue(client, "q0", clock_shift_ms=LATE_MS)
    keys = {
        key
        for number in range(4)
        for key in client.scan_iter(f"q{number}/queue/*")
        if b"}/read." not in key
    }
    assert client.dbsize() - before > len(keys) > 20
    return lambda **options: QueueExpiry(late, **options), len(keys)


def idle_fair_queues(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Let fair queues be idle, of which one has set a message aside: that and its facts stay."""
    client = server.client()
    for number in range(4):
        queue: FairQueue = FairQueue(client, f"f{number}", ttl=60.0, max_attempts=1)
        queue.set_rule("*", weight=2)
        for tenant in range(3):
            queue.write(f"t{tenant}", {"a": "b"}, tracking_id=f"{tenant}", dedupe=("k", 60))
        message = queue.read("c")
        assert message is not None
        if not number:
            assert queue.nack(message) == 1
    keys = [
        key
        for number in range(4)
        for key in client.scan_iter(f"f{number}/fair/*")
        if b"}/read." not in key and client.pttl(key) == -1
    ]
    kept = [key for key in keys if key.startswith(b"f0/") and key.endswith((b"/dead", b"/meta"))]
    assert len(kept) == 2
    late = FairQueue(client, "f0", clock_shift_ms=LATE_MS)
    return lambda **options: QueueExpiry(late, **options), len(keys) - len(kept)


def stale_reservations(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Let reservations go stale."""
    ick: Ick = Ick(server.client(), "u")
    ick.add({str(number): number for number in range(30)})
    ick.reserve(30)
    time.sleep(0.05)
    return lambda **options: IckReaper(ick, lease=0.02, **options), 30


def old_blocks(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Write a log with more blocks than are to stay."""
    log: Log = Log(server.client(), "u", 4)
    log.append(*(b"entry %d" % number for number in range(80)))
    return lambda **options: LogTrimmer(log, max_entries=20, **options), 15


def loose_blocks(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Write a log with full blocks."""
    log: Log = Log(server.client(), "u", 4)
    log.append(*(b"entry %d" % number for number in range(82)))
    return lambda **options: LogCompactor(log, **options), 20


def untracked_ids(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Have work in a table of which the set knows nothing."""
    source = TableSource([f"{number:04}" for number in range(45)])
    tracked = TrackedSet(server.client(), "u", source, sub_sets=4)
    return lambda **options: TrackQueued(tracked, **options), 45


def ids_without_work(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Track ids of which the table knows nothing."""
    tracked = TrackedSet(server.client(), "u", TableSource([]), sub_sets=1)
    tracked.track([f"{number:04}" for number in range(40)])
    return lambda **options: UntrackDone(tracked, **options), 40


def hashes_to_adopt(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Write hashes of another program."""
    client = server.client()
    for number in range(20):
        client.hset(f"foreign:{number}", mapping={"a": 1, "b": 2, "c": 3})
    ours = VolatileHashes(client, "u", backend="emulated")
    return lambda **options: AdoptHashes(ours, "foreign:*", ttl=600, **options), 60


def fields_to_hand_over(server: AnyServer) -> tuple[Callable[..., Job], int]:
    """Write an emulated namespace on a server that expires fields itself."""
    ours = VolatileHashes(server.client(), "u", backend="emulated")
    for number in range(20):
        ours.hsetex(f"h:{number}", mapping={"a": 1, "b": 2, "c": 3}, ex=7_200)
    return lambda **options: MigrateToNative(VolatileHashes(server.client(), "u"), **options), 60


STRUCTURES: dict[str, tuple[Callable[[AnyServer], Any], str]] = {
    "HashFieldExpiry": (expired_fields, "redis7"),
    "KeyExpiry": (overdue_keys, "redis7"),
    "QueueExpiry": (idle_queues, "redis7"),
    "QueueExpiry of fair queues": (idle_fair_queues, "redis7"),
    "IckReaper": (stale_reservations, "redis7"),
    "LogTrimmer": (old_blocks, "redis7"),
    "LogCompactor": (loose_blocks, "redis7"),
    "TrackQueued": (untracked_ids, "redis7"),
    "UntrackDone": (ids_without_work, "redis7"),
    "AdoptHashes": (hashes_to_adopt, "redis7"),
    "MigrateToNative": (fields_to_hand_over, "redis8"),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_jobs_of_structures_count_alike(name: str, request: pytest.FixtureRequest) -> None:
    fill, on = STRUCTURES[name]
    make, planted = fill(request.getfixturevalue(on))
    assert make(dry_run=True).backlog(60.0).count == planted
    dry = make(dry_run=True, limit=1_000)
    assert dry.perform(Slice(1_000, 60.0)) == planted
    job = make(limit=7)
    assert job.unit in job.backlog(60.0).what or job.unit == "reservations"
    total = idle = 0
    while idle < 3:
        try:
            done = job.perform(Slice(7, 60.0))
        except Aborted:
            continue
        # A hash of a few fields is adopted as a whole, and a fair queue is deleted as a whole.
        assert done <= {"AdoptHashes": 9, "QueueExpiry of fair queues": 6 + 17}.get(name, 7)
        total, idle = total + done, 0 if done else idle + 1
    assert total == planted
    assert job.backlog(60.0).count == 0


def test_every_job_that_ships_names_its_items() -> None:
    """A queue's reaper alone has many kinds: messages, consumers, tracking ids, accounts."""
    unnamed = {
        name
        for name in jobs.__all__
        if isinstance(kind := getattr(jobs, name), type)
        and issubclass(kind, Job)
        and kind.unit is Job.unit
    }
    assert unnamed == {"FairQueueReaper", "ShuffleQueueReaper"}
