"""Queues on the dashboard and in `status`, and putting back their dead messages."""

from __future__ import annotations

from typing import Any

from support.dashboards import make_app
from support.patience import patient
from support.reapers import reaper_after
from support.servers import AnyServer, RedisServer, wait_until
from workstealing import Recruiter
from workstealing.dashboard.queries import structure_figures
from workstealing.dashboard.steering import steer_dead
from workstealing.dashboard.watched import Watched, watch, watch_all
from workstealing.jobs import FairQueueReaper, QueueExpiry, ShuffleQueueReaper, TimeShardSweeper
from workstealing.jobs.fair_queue_reaper import WHAT as LAPSED
from workstealing.jobs.shuffle_queue_reaper.job import WAITING
from workstealing.recruiting.slice import Slice
from workstealing.structures import (
    AsyncFairQueue,
    AsyncShuffleQueue,
    FairQueue,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.fair_queue import NewMessage
from workstealing.structures.time_shard_queue import RedisStore

__all__ = ["patient"]


def figures(thing: Any) -> Any:
    found = structure_figures(watch(thing))
    assert found.trouble is None
    return found


def test_every_server_tells_of_a_shuffle_queue(any_server: AnyServer) -> None:
    client = any_server.client()
    queue = ShuffleQueue(client, "mails")
    assert (figures(queue).size, figures(queue).dead_size, figures(queue).due) == (0, 0, None)
    ids = [queue.write("acme", {"n": str(n)}) for n in range(5)]
    held = queue.read_many("g", "gone", 3)
    reaper = ShuffleQueueReaper(queue, lease=0.001)
    wait_until(lambda: reaper.backlog().count == 3, "a millisecond of idleness")
    found = figures(reaper)
    assert (found.size, found.due.count, found.due.what) == (5, 3, WAITING)
    assert found.watched.job == "shuffle_queue_reaper.mails"
    assert (found.watched.name, found.watched.kind) == ("mails", "shuffle queue")
    queue.ack(*held)
    assert figures(queue).size == len(ids) - 3


def test_every_server_tells_of_a_fair_queue(any_server: AnyServer) -> None:
    client = any_server.client()
    queue = FairQueue(client, "mails", lease=0.001)
    assert (figures(queue).size, figures(queue).dead_size, figures(queue).due) == (0, 0, None)
    assert client.keys("mails*") == []
    queue.write_many([NewMessage("acme", {"n": n}, delay=60 * (n == 4)) for n in range(5)])
    held = queue.read_many("gone", 3)
    reaper = FairQueueReaper(queue)
    wait_until(lambda: reaper.backlog().count == 3, "the leases' end")
    found = figures(reaper)
    assert (found.size, found.due.count, found.due.what) == (5, 3, LAPSED)
    assert found.watched.job == "fair_queue_reaper.mails"
    assert (found.watched.name, found.watched.kind) == ("mails", "fair queue")
    queue.ack(*held)
    assert (figures(queue).size, figures(reaper).due.count) == (2, 0)


def test_every_server_tells_of_idle_fair_queues(any_server: AnyServer) -> None:
    client = any_server.client()
    for number in range(3):
        FairQueue(client, f"q{number}", ttl=1.0).write("acme", {"a": "b"})
    kept = FairQueue(client, "kept")
    kept.write("acme", {"a": "b"})
    late = FairQueue(client, "q0", clock_shift_ms=60_000)
    found = figures(QueueExpiry(late))
    # Each has its facts, its accounts, those that are ready, messages, and a notification.
    assert (found.size, found.due.count, found.due.what) == (4, 15, "keys of idle queues")
    assert (found.watched.name, found.watched.kind) == ("fair_queues", "fair queues")
    assert found.due.oldest_seconds > 0


def test_every_server_tells_of_idle_queues(any_server: AnyServer) -> None:
    client = any_server.client()
    assert figures(QueueExpiry(client)).size == 0
    for number in range(3):
        ShuffleQueue(client, f"q{number}", ttl=1.0).write("acme", {"a": "b"})
    ShuffleQueue(client, "kept").write("acme", {"a": "b"})
    late = ShuffleQueue(client, "q0", clock_shift_ms=60_000)
    found = figures(QueueExpiry(late))
    assert (found.size, found.due.count, found.due.what) == (4, 9, "keys of idle queues")
    assert (found.watched.name, found.watched.kind) == ("shuffle_queues", "shuffle queues")
    assert found.due.oldest_seconds > 0


def test_every_server_tells_of_a_time_shard_queue(any_server: AnyServer) -> None:
    client = any_server.client()
    queue = TimeShardQueue(RedisStore(client), "mails", shards=5, period=3600)
    before = set(client.scan_iter())
    assert (figures(queue).size, figures(queue).dead_size, figures(queue).due) == (0, 0, None)
    assert set(client.scan_iter()) == before
    for number in range(4):
        queue.put(str(number))
    one, two, _ = queue.take_many("gone", 3, lease=0.001, drain_all=True)
    queue.ack(one, two)
    sweeper = TimeShardSweeper(queue)
    wait_until(lambda: sweeper.backlog().count == 5, "the leases' end")
    found = figures(sweeper)
    assert (found.size, found.due.count, found.due.what) == (2, 5, "messages to sweep")
    assert found.watched.job == "time_shard_sweeper.mails"
    assert (found.watched.name, found.watched.kind) == ("mails", "time shard queue")


def test_queues_come_once_and_the_job_knows_more(redis7: RedisServer) -> None:
    client = redis7.client()
    shuffle = ShuffleQueue(client, "mails")
    timed = TimeShardQueue(RedisStore(client), "mails")
    asynchronous = AsyncShuffleQueue(redis7.async_client(), "others")
    fair, other = FairQueue(client, "mails"), AsyncFairQueue(redis7.async_client(), "others")
    jobs = [
        ShuffleQueueReaper(shuffle),
        TimeShardSweeper(timed),
        QueueExpiry(asynchronous),
        ShuffleQueueReaper(asynchronous),
        FairQueueReaper(fair),
        QueueExpiry(other),
        FairQueueReaper(other),
    ]
    found = watch_all([timed, shuffle, fair], jobs)
    assert [(each.kind, each.name, each.due is not None) for each in found] == [
        ("shuffle queue", "mails", True),
        ("time shard queue", "mails", True),
        ("shuffle queues", "shuffle_queues", True),
        ("shuffle queue", "others", True),
        ("fair queue", "mails", True),
        ("fair queues", "fair_queues", True),
        ("fair queue", "others", True),
    ]


def kill(queue: ShuffleQueue, *groups: str) -> list[str]:
    """Let messages fail too often for some groups; return their ids, sorted."""
    ids = {each.id for group in groups for each in queue.read_many(group, "c", 100)}
    reaper = reaper_after(1, queue, lease=0.001)
    for _ in range(200):
        if all(len(queue.dead(group)) == len(ids) for group in groups):
            return sorted(ids)
        reaper.perform(Slice(100, 5.0))
    raise AssertionError("the reaper has set nothing aside")


def members(watched: Watched) -> list[tuple[str, str]]:
    found = structure_figures(watched)
    assert found.trouble is None
    return sorted((str(each.member), each.part) for each in found.dead)


def test_dead_messages_of_a_group_are_put_back_for_it_alone(redis7: RedisServer) -> None:
    queue = ShuffleQueue(redis7.client(), "mails")
    queue.read("one", "c")
    queue.read("two", "c")
    for number in range(2):
        queue.write("acme", {"n": str(number)})
    first, second = kill(queue, "one", "two")
    watched = watch(queue)
    assert members(watched) == sorted(
        (each, f"group {group}") for each in (first, second) for group in ("one", "two")
    )
    found = structure_figures(watched)
    assert found.dead_size == 4
    assert all(each.attempts == 1 and each.died for each in found.dead)
    said = steer_dead("revive", watched, item_key_of(watched, first, "group one"), sure=False)
    assert said.startswith("1 item of")
    assert len(queue.dead("one")) == 1
    assert len(queue.dead("two")) == 2
    assert queue.read("one", "c").fields in ({b"n": b"0"}, {b"n": b"1"})
    assert queue.read("two", "c") is None
    said = steer_dead("discard", watched, "all", sure=True)
    assert said.startswith("3 items of")
    assert structure_figures(watched).dead_size == 0


def test_dead_messages_of_a_fair_queue_are_put_back_or_forgotten(redis7: RedisServer) -> None:
    queue = FairQueue(redis7.client(), "mails", max_attempts=1)
    ids = [queue.write("acme", {"n": number}, account="big") for number in range(3)]
    assert queue.nack(*queue.read_many("c", 3)) == 3
    watched = watch(queue)
    assert members(watched) == [(each, "") for each in ids]
    found = structure_figures(watched)
    assert (found.size, found.dead_size) == (0, 3)
    assert all(each.attempts == 1 and each.died and each.tenant == "acme" for each in found.dead)
    said = steer_dead("revive", watched, item_key_of(watched, ids[1]), sure=False)
    assert said.startswith("1 item of")
    message = queue.read("c")
    assert message is not None
    assert (message.fields, message.account, message.attempts) == ({b"n": b"1"}, "big", 1)
    said = steer_dead("discard", watched, "all", sure=True)
    assert said.startswith("2 items of")
    assert structure_figures(watched).dead_size == 0


def item_key_of(watched: Watched, member: str, part: str = "") -> str:
    """Return a dead item's key in the page's forms."""
    listed = structure_figures(watched).dead
    (found,) = [each for each in listed if (each.member, each.part) == (member, part)]
    return found.key


def test_dead_messages_of_a_time_shard_queue_are_put_back(redis7: RedisServer) -> None:
    queue = TimeShardQueue(RedisStore(redis7.client()), "mails", period=3600, max_attempts=1)
    ids = sorted(queue.put(str(number)) for number in range(3))
    queue.take_many("gone", 3, lease=0.001, drain_all=True)
    while not queue.dead():
        queue.take("other", drain_all=True)
    watched = watch(queue)
    assert [each for each, _ in members(watched)] == ids
    assert structure_figures(watched).dead_size == 3
    assert steer_dead("revive", watched, item_key_of(watched, ids[0]), sure=False).startswith("1 ")
    assert queue.take("other", drain_all=True).id == ids[0]
    assert steer_dead("discard", watched, "all", sure=True).startswith("2 items")
    assert queue.dead() == []


def test_a_recruiters_page_shows_its_queues(
    redis7: RedisServer, never_recruiter: Recruiter
) -> None:
    client = redis7.client()
    queue = ShuffleQueue(client, "mails \x1b[31m")
    queue.write("acme", {"a": "b"})
    never_recruiter.install(ShuffleQueueReaper(queue), rate=0.1)
    never_recruiter.install(QueueExpiry(queue), rate=0.1)
    fair = FairQueue(client, "fair \x1b[31m")
    fair.write("acme", {"a": "b"})
    never_recruiter.install(FairQueueReaper(fair), rate=0.1)
    never_recruiter.install(QueueExpiry(fair), rate=0.1)
    timed = TimeShardQueue(RedisStore(client), "reminders")
    never_recruiter.install(TimeShardSweeper(timed), rate=0.1)
    page = make_app(never_recruiter, client).test_client().get("/ws/").text
    assert "could not be asked" not in page
    for part in (
        *("shuffle queue", "shuffle queues", "fair queue", "fair queues", "time shard queue"),
        ">reminders</bdi>",
    ):
        assert part in page
