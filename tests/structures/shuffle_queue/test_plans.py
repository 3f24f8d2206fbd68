"""Plans of reads: every stream that one serves was marked as pending before, and is in turn."""

from __future__ import annotations

from typing import Any

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer, wait_until
from support.single_streams import SingleStreams
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import ShuffleQueue
from workstealing.structures.shuffle_queue.streams import Turns
from workstealing.testing import ManualClock

GROUP = "workers"
FIELDS = ("plan", "group", "turns")


def plan_of(queue: Any) -> list[str]:
    """Return whose turns the plan at hand says, each once."""
    meta = queue.keys.meta
    name, last, text = queue.client.hmget(meta, *(f"{f}:{GROUP}" for f in FIELDS))
    plan = Turns.of(text.decode()) if name else None
    if plan is None:
        return []
    assert plan.name == name.decode()
    return list(plan.following(last.decode(), 100))


def planned(client: Any, streams: int = 4, each: int = 30) -> SingleStreams:
    """Return a queue whose streams have all been read, and which has a plan."""
    singles = SingleStreams(client, "planned", 16)
    for _ in range(each):
        for stream in range(streams):
            singles.put(stream, {"a": 1})
    while not plan_of(singles.queue):
        singles.queue.ack(singles.queue.read(GROUP, "one"))
    return singles


def scripts_run(client: Any) -> int:
    """Return how many scripts the server has run."""
    called: int = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    return called


def require_marks(queue: Any) -> None:
    """Every stream with pending entries is marked, from no later than its oldest delivery."""
    names = queue.keys.group(GROUP)
    marks = dict(queue.client.zrange(names.pending, 0, -1, withscores=True))
    for number in range(16):
        key = queue.keys.stream(number)
        if not queue.client.exists(key) or not queue.client.xinfo_groups(key):
            continue
        held = queue.client.xpending_range(key, GROUP, "-", "+", 1000)
        if held:
            seconds, micros = queue.client.time()
            now = seconds * 1000 + micros // 1000
            oldest = max(entry["time_since_delivered"] for entry in held)
            assert marks[str(number).encode()] <= now - oldest + 1, number


def test_a_plan_serves_without_the_full_script(any_server: AnyServer) -> None:
    queue = planned(any_server.client()).queue
    before = plan_of(queue)
    message: Any = queue.read(GROUP, "two")
    assert message.stream == int(before[0])
    # It has seen the whole ring, and goes round.
    assert plan_of(queue) == [*before[1:], before[0]]


def test_what_is_served_by_a_plan_was_marked_before(any_server: AnyServer) -> None:
    """A consumer may die after any read: the reaper finds what it held."""
    queue = planned(any_server.client()).queue
    for _ in range(60):
        queue.read(GROUP, "dies")
        require_marks(queue)


def test_who_takes_a_mark_away_takes_the_plan_too(redis7: RedisServer) -> None:
    queue = planned(redis7.client(), streams=1).queue
    reaper = ShuffleQueueReaper(queue, lease=0.001)
    pending = queue.keys.group(GROUP).pending

    def unmarked() -> bool:
        reaper.perform(Slice(25, 10.0))
        return not queue.client.zcard(pending)

    wait_until(unmarked, "the mark of a stream without pending entries to be taken away")
    assert plan_of(queue) == []
    for _ in range(8):
        queue.read(GROUP, "dies")
        require_marks(queue)


def test_whoever_comes_in_or_returns_ends_a_plan(any_server: AnyServer) -> None:
    singles = planned(any_server.client())
    queue = singles.queue
    singles.put(9, {"a": 1})
    assert plan_of(queue) == []
    while not plan_of(queue):
        message: Any = queue.read(GROUP, "one")
    assert queue.nack(message) == 1
    assert plan_of(queue) == []
    while not plan_of(queue):
        queue.read(GROUP, "one")
    assert queue.nack(message, delay=60) == 0
    queue.nack(queue.read(GROUP, "one"), delay=60)
    assert plan_of(queue) == []


def test_overdue_messages_are_passed_over_by_a_plan(any_server: AnyServer) -> None:
    singles = planned(any_server.client(), streams=1, each=12)
    queue = singles.queue
    singles.put(0, {"late": 1}, deadline=1)
    singles.put(0, {"last": 1})
    served: list[Any] = []
    while (message := queue.read(GROUP, "one")) is not None:
        served.append(message)
    assert b"last" in served[-1].fields
    assert not any(b"late" in message.fields for message in served)
    assert queue.stats(GROUP)["overdue"] == 1
    held = queue.client.xpending_range(queue.keys.stream(0), GROUP, "-", "+", 1000)
    assert [entry["message_id"] for entry in held] == [m.entry_id.encode() for m in served]
    assert queue.length() == len(held)


def test_delays_of_planned_reads_are_counted(any_server: AnyServer) -> None:
    queue = planned(any_server.client()).queue
    before = queue.stats(GROUP)["delivered"]
    for count in range(1, 31):
        queue.read(GROUP, "one")
        if count % 7 == 0:
            assert queue.stats(GROUP)["delivered"] == before + count
    assert queue.stats(GROUP)["delivered"] == before + 30


def test_a_plan_that_has_seen_the_whole_ring_goes_round_for_all_readers(
    any_server: AnyServer,
) -> None:
    """Its name stays, so that no reader has to learn it anew, and the turns stay exact."""
    queue = planned(any_server.client(), each=60).queue
    other = ShuffleQueue(queue.client, "planned", 16)
    while len(plan_of(queue)) < 4:
        queue.read(GROUP, "one")
    name = queue.client.hget(queue.keys.meta, f"plan:{GROUP}")
    turns = plan_of(queue)
    served = [(other if n % 3 else queue).read(GROUP, "one").stream for n in range(160)]
    assert served == [int(number) for number in turns] * 40
    assert queue.client.hget(queue.keys.meta, f"plan:{GROUP}") == name


def test_a_legacy_stream_comes_in_where_a_plan_goes_round(any_server: AnyServer) -> None:
    """Whoever writes it ends no plan: each reader looks for it after 64 messages."""
    queue = planned(any_server.client(), streams=4, each=40).queue
    queue.client.xadd("planned", {"a": 1})
    served = [queue.read(GROUP, "one").stream for _ in range(64 + 4 + 2)]
    assert served.count(None) == 1


def test_a_legacy_stream_comes_in_however_slowly_it_is_read(any_server: AnyServer) -> None:
    """Who announces itself hands over its pickup delays: it never has 64 of them."""
    queue = planned(any_server.client(), streams=4, each=40).queue
    clock = ManualClock()
    queue.monotonic = clock.monotonic
    queue.client.xadd("planned", {"a": 1})
    served = []
    for _ in range(20):
        clock.advance(1.0)
        served.append(queue.read(GROUP, "slow").stream)
    assert served.count(None) == 1


def test_a_plan_that_has_ended_tells_where_the_next_read_begins(redis7: RedisServer) -> None:
    """A stream that is empty at its turn costs a full read, and no further round trip."""
    queue = planned(redis7.client(), streams=8, each=4).queue
    queue.client.hdel(queue.keys.meta, f"plan:{GROUP}")
    while not plan_of(queue):
        queue.read(GROUP, "one")
    for _ in range(5):
        assert queue.read(GROUP, "one")
    turns = plan_of(queue)
    queue.client.delete(queue.keys.stream(int(turns[0])))
    before = scripts_run(queue.client)
    assert queue.read(GROUP, "one").stream == int(turns[1])
    assert scripts_run(queue.client) - before == 2


def test_a_reader_with_the_plan_of_before_serves_who_is_next(any_server: AnyServer) -> None:
    singles = planned(any_server.client())
    queue = singles.queue
    late = ShuffleQueue(queue.client, "planned", 16)
    for _ in range(30):
        late.read(GROUP, "late")
    singles.put(9, {"a": 1})
    while not plan_of(queue):
        queue.read(GROUP, "one")
    turns = plan_of(queue)
    assert [late.read(GROUP, "late").stream for _ in turns] == [int(n) for n in turns]


def test_the_mark_of_a_legacy_stream_stands_for_no_other(any_server: AnyServer) -> None:
    """As many marks as streams, and one of them is missing all the same."""
    singles = SingleStreams(any_server.client(), "planned", 4)
    queue = singles.queue
    for _ in range(40):
        for stream in range(4):
            singles.put(stream, {"a": 1})
    while not plan_of(queue):
        queue.ack(queue.read(GROUP, "one"))
    names = queue.keys.group(GROUP)
    queue.client.zrem(names.pending, 3)
    queue.client.zadd(names.pending, {"-1": 1})
    queue.client.hdel(queue.keys.meta, f"plan:{GROUP}")
    for _ in range(12):
        queue.read(GROUP, "dies")
        require_marks(queue)
    assert queue.client.zscore(names.pending, 3)
