"""Both queues in `status`, `jobs`, `doctor` and `drain`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.app_clients import client_source
from support.patience import patient
from support.servers import RedisCluster3, RedisServer, wait_until
from support.set_clock import SetClock
from workstealing.cli.drain import known_backlog
from workstealing.jobs import FairQueueReaper, ShuffleQueueReaper, TimeShardSweeper
from workstealing.structures import FairQueue, ShuffleQueue, TimeShardQueue
from workstealing.structures.time_shard_queue import RedisStore

__all__ = ["patient"]

pytestmark = pytest.mark.real

MakeApp = Callable[[str], str]

APP = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import QueueExpiry, ShuffleQueueReaper, TimeShardSweeper
    from workstealing.structures import AsyncRedisStore, AsyncTimeShardQueue
    from workstealing.structures import RedisStore, ShuffleQueue, TimeShardQueue

    client = {client}
    recruiter = Recruiter(seconds=5.0)
    mails = ShuffleQueue(client, "mails", clock_shift_ms=600_000, ttl=86400.0)
    recruiter.install(ShuffleQueueReaper(mails, lease=0.001), rate=0.1)
    recruiter.install(QueueExpiry(client), rate=0.1)
    reminders = TimeShardQueue(RedisStore(client), "reminders", shards={shards}, period=3600)
    recruiter.install(TimeShardSweeper(reminders), rate=0.1)
"""


def app(server: RedisServer | RedisCluster3, shards: int = 6) -> str:
    return APP.format(client=client_source(server), shards=shards)


def fill(server: RedisServer | RedisCluster3) -> None:
    """Let consumers of both queues die with what they had taken."""
    client = server.client()
    mails = ShuffleQueue(client, "mails")
    for number in range(5):
        mails.write("acme", {"n": str(number)})
    assert len(mails.read_many("g", "gone", 3)) == 3
    reminders = TimeShardQueue(RedisStore(client), "reminders", shards=6, period=3600)
    for number in range(4):
        reminders.put(str(number))
    assert len(reminders.take_many("gone", 2, lease=0.001, drain_all=True)) == 2
    reaper = ShuffleQueueReaper(mails, lease=0.001)
    sweeper = TimeShardSweeper(reminders)
    wait_until(
        lambda: reaper.backlog().count == 3 and sweeper.backlog().count == 2, "an idle moment"
    )


def check_status(command: Any, name: str) -> None:
    found, jobs = command.well(name)
    assert found == {
        ("shuffle queue", "mails"): (5, 3, 0),
        ("shuffle queues", "shuffle_queues"): (1, 0, None),
        ("time shard queue", "reminders"): (4, 2, 0),
    }
    assert jobs == {
        "shuffle_queue_reaper.mails": 3,
        "queue_expiry.shuffle_queues": 0,
        "time_shard_sweeper.reminders": 2,
    }
    text = command("status", "--app", name)
    assert "3 messages of dead consumers" in text
    assert "2 messages to sweep" in text


def test_status_shows_both_queues(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    fill(redis7)
    name = app_module(app(redis7))
    check_status(command, name)
    assert command("top", "--app", name, "--times", "1").count("shuffle queue") == 2
    listed = command.json("jobs", "--app", name)["jobs"]
    assert [(each["kind"], each["backlog"]) for each in listed] == [
        ("ShuffleQueueReaper", True),
        ("QueueExpiry", True),
        ("TimeShardSweeper", True),
    ]
    assert all(each["summary"] and each["dry_run"] is False for each in listed)


@pytest.mark.cluster
def test_status_shows_both_queues_of_a_cluster(
    command: Any, app_module: MakeApp, cluster: RedisCluster3
) -> None:
    fill(cluster)
    check_status(command, app_module(app(cluster)))


def test_what_nobody_has_used_yet_is_not_made_by_looking(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    said = command.json("status", "--app", app_module(app(redis7)))
    assert [each["size"] for each in said["structures"]] == [0, 0, 0]
    command("doctor", "--app", app_module(app(redis7)))
    # The ledger's namespace is opened, and nothing of a queue.
    assert redis7.client().keys() == [b"ws:ledger.default:layout"]


def test_drain_gives_back_what_dead_consumers_held(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    fill(redis7)
    said = command.json("drain", "shuffle_queue_reaper.mails", "--app", app_module(app(redis7)))
    assert said["drained"] is True
    assert said["jobs"]["shuffle_queue_reaper.mails"]["items"] >= 3
    mails = ShuffleQueue(redis7.client(), "mails")
    assert sorted(each.attempts for each in mails.read_many("g", "next", 10)) == [1, 1, 2, 2, 2]


def test_doctor_examines_both_queues(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    name = app_module(app(redis7))
    before = command.checks(name)
    for job in ("shuffle_queue_reaper.mails", "time_shard_sweeper.reminders"):
        assert before[f"job {job}"][0] == "note"
        assert "nothing has been written yet" in before[f"job {job}"][1]
    assert before["client"][0] == "ok"
    fill(redis7)
    after = command.checks(name)
    assert after["job shuffle_queue_reaper.mails"] == (
        "ok",
        "namespace shuffle_queues: streams, layout version 1",
    )
    assert after["job time_shard_sweeper.reminders"] == (
        "ok",
        "queue reminders: 6 time shards of 3600 s",
    )
    other = command.checks(app_module(app(redis7, shards=5)), status=1)
    assert other["job time_shard_sweeper.reminders"] == (
        "fault",
        "queue reminders: has 6 time shards of 3600 s, and this process 5 time shards of 3600 s",
    )
    on_asyncio = app(redis7, shards=5).replace(
        "TimeShardQueue(RedisStore(client)",
        f"AsyncTimeShardQueue(AsyncRedisStore(redis.asyncio.Redis.from_url({redis7.url!r}))",
    )
    assert "asyncio" in on_asyncio
    job = "job time_shard_sweeper.reminders"
    assert command.checks(app_module(on_asyncio), status=1)[job] == other[job]


def test_doctor_says_that_a_queue_is_being_deleted(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    fill(redis7)
    redis7.client().hset("ws:time_shard_queue:layout:reminders", "dropping", 1)
    said = command.json("doctor", "--app", app_module(app(redis7)), status=1)
    (found,) = [
        each for each in said["checks"] if each["what"] == "job time_shard_sweeper.reminders"
    ]
    assert found["level"] == "fault"
    assert "being deleted" in found["said"]
    assert "call delete() once more" in found["said"]


def test_a_drain_looks_for_what_waits_wherever_a_sweeper_may_work_now(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    clock = SetClock()
    queue = TimeShardQueue(RedisStore(redis7.client()), "reminders", 16, 3600, clock=clock)
    clock.now = time.time() // 3600 * 3600 + 1800
    sweeper = TimeShardSweeper(queue)
    queue.cancel(queue.put("in the producers' time shard"))
    assert (sweeper.backlog().count, known_backlog(sweeper)) == (1, 0)
    clock.now += 8 * 3600
    queue.cancel(queue.put("where nobody works now"))
    clock.now -= 8 * 3600
    assert (sweeper.backlog().count, known_backlog(sweeper)) == (2, 1)
    # Of eleven time shards a slice looks into one: idle ones alone do not say that it is drained.
    name = app_module(app(redis7, shards=16))
    said = command.json("drain", "time_shard_sweeper.reminders", "--idle", "10", "--app", name)
    assert said["drained"] is True
    assert said["jobs"]["time_shard_sweeper.reminders"]["items"] == 1
    assert sweeper.backlog().count == 1


def test_status_doctor_and_drain_know_a_fair_queue(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    name = app_module(
        f"""
        import redis
        from workstealing import Recruiter
        from workstealing.jobs import FairQueueReaper, QueueExpiry
        from workstealing.structures import FairQueue

        client = redis.Redis.from_url({redis7.url!r})
        recruiter = Recruiter(seconds=5.0)
        mails = FairQueue(client, "mails", clock_shift_ms=600_000)
        recruiter.install(FairQueueReaper(mails), rate=0.1)
        recruiter.install(QueueExpiry(mails), rate=0.1)
        """
    )
    assert "nothing has been written yet" in command.checks(name)["job fair_queue_reaper.mails"][1]
    assert redis7.client().keys("mails*") == []
    mails = FairQueue(redis7.client(), "mails")
    for number in range(5):
        mails.write("acme", {"n": str(number)})
    assert len(mails.read_many("gone", 3)) == 3
    found, jobs = command.well(name)
    assert found == {
        ("fair queue", "mails"): (5, 3, 0),
        ("fair queues", "fair_queues"): (1, 0, None),
    }
    assert jobs == {"fair_queue_reaper.mails": 3, "queue_expiry.fair_queues": 0}
    assert "3 lapsed deliveries" in command("status", "--app", name)
    assert command.checks(name)["job fair_queue_reaper.mails"][0] == "ok"
    said = command.json("drain", "fair_queue_reaper.mails", "--app", name)
    assert said["drained"] is True
    assert said["jobs"]["fair_queue_reaper.mails"]["items"] >= 3
    later = FairQueue(redis7.client(), "mails", clock_shift_ms=600_000)
    assert FairQueueReaper(later).backlog().count == 0
    assert sorted(each.attempts for each in mails.read_many("next", 10)) == [1, 1, 2, 2, 2]
