"""The pipelines of queues, logs and their groups: what the calls do one by one, in one round trip.

Each structure has a `Case`, so that all tests of a rule run on all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import ExecAbortError, ResponseError
from redis.retry import Retry

from support.any_server import AnyServer
from support.faulty_server import FaultyServer
from support.servers import RedisServer
from workstealing.errors import ConfigurationError, LayoutError, QueueFull
from workstealing.structures import (
    AsyncFairQueue,
    AsyncLog,
    AsyncRedisStore,
    AsyncShuffleQueue,
    AsyncTimeShardQueue,
    FairQueue,
    Log,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
)
from workstealing.structures.fair_queue import NewMessage

UNKNOWN = "whether it was done is not known, so it was not sent again"
LONG = 3600.0


@dataclass(frozen=True)
class Case:
    """One structure, told apart by its calls.

    Fields: make: of a client, and a name; make_async; write: one item, by its number; read: up to
    so many; numbers: of what a read has returned; settle: what was read; length: how many are left.
    """

    make: Callable[..., Any]
    make_async: Callable[..., Any]
    write: Callable[[Any, int], Any]
    read: Callable[[Any, int], Any]
    numbers: Callable[[Any], list[int]]
    settle: Callable[[Any, Any], Any]
    length: Callable[[Any], Any]
    foreign: str


def _fields(messages: Any) -> list[int]:
    return [int(each.fields[b"n"]) for each in messages]


CASES = {
    "shuffle": Case(
        lambda client, name="q": ShuffleQueue(client, name, 1, 1),
        lambda client, name="q": AsyncShuffleQueue(client, name, 1, 1),
        lambda queue, number: queue.write("t", {"n": number}),
        lambda queue, n: queue.read_many("g", "me", n),
        _fields,
        lambda queue, messages: queue.ack(*messages),
        lambda queue: queue.length(),
        "q/queue/{q}/meta",
    ),
    "fair": Case(
        lambda client, name="q": FairQueue(client, name),
        lambda client, name="q": AsyncFairQueue(client, name),
        lambda queue, number: queue.write("t", {"n": number}),
        lambda queue, n: queue.read_many("me", n),
        _fields,
        lambda queue, messages: queue.ack(*messages),
        lambda queue: queue.length(),
        "q/fair/{q}/meta",
    ),
    "time_shard": Case(
        # A take with drain_all begins with the time shard that has them.
        lambda client, name="q": TimeShardQueue(RedisStore(client), name, 4, LONG),
        lambda client, name="q": AsyncTimeShardQueue(AsyncRedisStore(client), name, 4, LONG),
        lambda queue, number: queue.put(b"%d" % number),
        lambda queue, n: queue.take_many("me", n, drain_all=True),
        lambda taken: [int(each.message) for each in taken],
        lambda queue, taken: queue.ack(*taken),
        lambda queue: queue.stats(),
        "ws:time_shard_queue:layout:q",
    ),
    "log": Case(
        lambda client, name="q": Log(client, name, 100),
        lambda client, name="q": AsyncLog(client, name, 100),
        lambda log, number: log.append(b"%d" % number),
        lambda log, n: log.read(0, n),
        lambda entries: [int(each) for each in entries if each is not None],
        lambda log, entries: log.evict(len(entries) - 1),
        lambda log: log.length(),
        "q/log/{q}/meta",
    ),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
QUEUES = pytest.mark.parametrize("kind", ["shuffle", "fair", "time_shard"])


class Counting(redis.Connection):
    """A connection that counts what is sent at once."""

    sent = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Count, and send."""
        Counting.sent += 1
        super().send_packed_command(command, check_health)


def counting(server: RedisServer) -> redis.Redis:
    pool = redis.ConnectionPool(connection_class=Counting, port=server.port)
    client = redis.Redis(connection_pool=pool)
    client.ping()
    return client


def trips(call: Callable[[], Any]) -> int:
    before = Counting.sent
    call()
    return Counting.sent - before


def behind(door: FaultyServer) -> redis.Redis:
    client = redis.Redis(port=door.port, retry=Retry(NoBackoff(), 3), protocol=2)
    client.ping()
    return client


def written(case: Case, structure: Any, count: int, first: int = 0) -> Any:
    for number in range(first, first + count):
        case.write(structure, number)
    return structure


def shown(results: Any) -> Any:
    """Return results without what differs from run to run."""
    kinds = [type(each) for each in results]
    return kinds, [each for each in results if isinstance(each, int)]


@EACH
def test_the_calls_answer_as_they_do_one_by_one(any_server: AnyServer, case: Case) -> None:
    client = any_server.client()
    direct, owner = case.make(client, "direct"), case.make(client, "queued")
    pipeline = owner.pipeline()
    by_one, together = [], []
    calls: list[list[Callable[[Any], Any]]] = [
        [lambda s, n=n: case.write(s, n) for n in range(5)],
        [lambda s: case.read(s, 3), case.length],
    ]
    for some in calls:
        by_one += [call(direct) for call in some]
        for call in some:
            assert call(pipeline) is pipeline
        together += pipeline.execute()
    assert shown(by_one) == shown(together)
    assert case.numbers(by_one[5]) == case.numbers(together[5]) == [0, 1, 2]
    settled = [case.settle(direct, by_one[5]), case.length(direct)]
    case.settle(pipeline, together[5])
    case.length(pipeline)
    assert shown(pipeline.execute()) == shown(settled)
    assert settled[0] == 3


@EACH
def test_many_writes_are_one_round_trip(redis7: RedisServer, case: Case) -> None:
    client = counting(redis7)
    structure = case.make(client)
    with structure.pipeline() as pipeline:
        case.write(pipeline, 0)
        first = trips(pipeline.execute)
        # The layout is read, or written, and what is to be known is asked.
        assert first <= 8
        for number in range(50):
            case.write(pipeline, number + 1)
        pipeline.incr("visits")
        case.length(pipeline)
        assert len(pipeline) == 52
        assert trips(pipeline.execute) == 1
    assert case.numbers(case.read(structure, 60)) == list(range(51))
    # What the pipeline has learned, the structure knows.
    assert trips(lambda: case.write(structure, 51)) <= 2
    assert trips(lambda: case.write(structure, 52)) == 1


@QUEUES
def test_a_read_and_a_settlement_are_one_round_trip(redis7: RedisServer, kind: str) -> None:
    case = CASES[kind]
    client = counting(redis7)
    structure = written(case, case.make(client), 4)
    pipeline = structure.pipeline()
    case.read(pipeline, 2)
    (found,) = pipeline.execute()
    case.settle(pipeline, found)
    case.read(pipeline, 2)
    pipeline.set("done", 1)
    results: list[Any] = []
    assert trips(lambda: results.extend(pipeline.execute())) <= (4 if kind == "time_shard" else 1)
    done, more, is_set = results
    assert (done, case.numbers(more), is_set) == (2, [2, 3], True)


@EACH
def test_the_first_writes_ever_are_in_the_transaction(door: FaultyServer, case: Case) -> None:
    structure = case.make(behind(door))
    pipeline = structure.pipeline()
    for number in range(3):
        case.write(pipeline, number)
    pipeline.incr("visits").execute()
    names = door.names()
    assert names.count("MULTI") == names.count("EXEC") == 1
    inside = names[names.index("MULTI") + 1 : names.index("EXEC")]
    assert [name for name in inside if name != "EVALSHA"] == ["EVAL", "INCRBY"]
    assert len(inside) == 4
    # No call had anything left to do.
    assert names[-1] == "EXEC"
    case.write(structure.pipeline(transaction=False), 3).execute()
    assert door.names().count("MULTI") == 1


@QUEUES
def test_a_read_by_a_new_process_is_in_the_transaction(door: FaultyServer, kind: str) -> None:
    case = CASES[kind]
    written(case, case.make(behind(door)), 3)
    structure = case.make(behind(door))
    pipeline = structure.pipeline()
    if kind == "time_shard":
        # That of the consumers' turn is empty.
        pipeline.take_many("me", 3)
    else:
        case.read(pipeline, 3)
    pipeline.set("reader", "me")
    before = len(door.seen)
    found, is_set = pipeline.execute()
    names = door.names()[before:]
    assert names[-4:] == ["MULTI", "EVAL", "SET", "EXEC"]
    assert is_set
    assert kind == "time_shard" or len(found) == 3


@EACH
def test_nothing_is_sent_before_and_nothing_is_kept_behind(redis7: RedisServer, case: Case) -> None:
    client = redis7.client()
    structure = case.make(client)
    pipeline = structure.pipeline()
    case.write(pipeline, 1)
    case.read(pipeline, 1)
    assert len(pipeline) == 2
    assert client.dbsize() == 0
    pipeline.reset()
    assert (len(pipeline), pipeline.execute(), client.dbsize()) == (0, [], 0)
    assert pipeline
    with structure.pipeline() as left:
        case.write(left, 2)
    assert len(left) == 0
    case.write(pipeline, 3)
    pipeline.execute()
    case.write(pipeline, 4)
    assert len(pipeline.execute()) == 1
    assert case.numbers(case.read(structure, 9)) == [3, 4]


@EACH
def test_two_pipelines_at_a_time(redis7: RedisServer, case: Case) -> None:
    structure = case.make(redis7.client())
    one, other = structure.pipeline(), structure.pipeline()
    for number in range(4):
        case.write(one if number % 2 else other, number)
        (one if number % 2 else other).incr("visits")
    assert other.execute()[1::2] == [1, 2]
    assert one.execute()[1::2] == [3, 4]
    assert case.numbers(case.read(structure, 9)) == [0, 2, 1, 3]


WAITING: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "shuffle read": ("shuffle", lambda p: p.read("g", "c", 5)),
    "shuffle read_many": ("shuffle", lambda p: p.read_many("g", "c", 2, block=0.5)),
    "shuffle exchange": ("shuffle", lambda p: p.exchange(group="g", consumer="c", block=5)),
    "fair read": ("fair", lambda p: p.read("c", 5)),
    "fair read_many": ("fair", lambda p: p.read_many("c", 2, block=5)),
    "fair exchange": ("fair", lambda p: p.exchange(consumer="c", block=5)),
    "log read": ("log", lambda p: p.read(0, 1, 5)),
    "log read_range": ("log", lambda p: p.read_range(0, block=5)),
}


@pytest.mark.parametrize("name", WAITING)
def test_nothing_waits_on_a_pipeline(redis7: RedisServer, name: str) -> None:
    kind, call = WAITING[name]
    client = redis7.client()
    pipeline = CASES[kind].make(client).pipeline()
    with pytest.raises(ConfigurationError) as refused:
        call(pipeline)
    said = str(refused.value)
    assert said.startswith("block=")
    assert f"call {name.split()[1]}() of the structure itself; nothing was queued" in said
    assert (len(pipeline), client.dbsize()) == (0, 0)


def test_a_member_of_a_group_does_not_wait_on_a_pipeline(redis7: RedisServer) -> None:
    pipeline = Log(redis7.client(), "q").group("g").pipeline()
    with pytest.raises(ConfigurationError, match=r"^block=1 has no place on a pipeline"):
        pipeline.read(block=1)
    assert pipeline.read(2, block=0).execute() == [[]]


@EACH
def test_nothing_comes_behind_a_deletion(redis7: RedisServer, case: Case) -> None:
    """Its later steps would remove what is written by the same round trip."""
    structure = written(case, case.make(redis7.client()), 3)
    pipeline = structure.pipeline()
    case.write(pipeline, 3)
    if not hasattr(structure, "delete"):
        return
    pipeline.delete()
    for call in (lambda: case.write(pipeline, 4), lambda: case.read(pipeline, 1), pipeline.delete):
        with pytest.raises(ConfigurationError, match="has no place behind delete"):
            call()
    assert len(pipeline.incr("visits")) == 3
    pipeline.execute()
    case.write(pipeline, 5)
    pipeline.execute()
    assert case.numbers(case.read(structure, 9)) == [5]


WRONG: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda p: p.write("t", {"ws:a": 1}),
    "fair": lambda p: p.write("t", {"a": 1}, priority=7),
    "time_shard": lambda p: p.take("me", lease=-1),
    "log": lambda p: p.append(b"a", producer="p"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_refused_where_they_are_given(redis7: RedisServer, kind: str) -> None:
    client = redis7.client()
    case = CASES[kind]
    structure = case.make(client)
    pipeline = structure.pipeline()
    case.write(pipeline, 1)
    with pytest.raises(ConfigurationError):
        WRONG[kind](pipeline)
    assert (len(pipeline), client.dbsize()) == (1, 0)
    assert len(pipeline.execute()) == 1


@EACH
def test_a_foreign_layout_is_told_by_execute(redis7: RedisServer, case: Case) -> None:
    client = redis7.client()
    client.set(case.foreign, "not ours")
    pipeline = case.make(client).pipeline()
    case.write(pipeline, 1)
    pipeline.incr("visits")
    with pytest.raises(LayoutError):
        pipeline.execute()
    assert len(pipeline) == 0
    client.delete(case.foreign)
    case.write(pipeline, 1)
    assert len(pipeline.execute()) == 1


@EACH
def test_an_aborted_transaction_changes_nothing(redis7: RedisServer, case: Case) -> None:
    client = redis7.client()
    structure = written(case, case.make(client), 1)
    pipeline = structure.pipeline()
    case.write(pipeline, 1)
    case.read(pipeline, 2)
    pipeline.execute_command("NOSUCHCOMMAND", "x")
    with pytest.raises((ExecAbortError, ResponseError)):
        pipeline.execute(raise_on_error=False)
    case.write(pipeline, 2)
    case.read(pipeline, 9)
    assert case.numbers(pipeline.execute()[1]) == [0, 2]


@EACH
@pytest.mark.parametrize("transaction", [True, False])
def test_what_is_cut_off_is_sent_once(door: FaultyServer, case: Case, transaction: bool) -> None:
    structure = written(case, case.make(behind(door)), 2)
    structure.pipeline().execute()
    pipeline = structure.pipeline(transaction)
    # So that nothing is left to be asked.
    case.write(pipeline, 2)
    pipeline.execute()
    case.write(pipeline, 3)
    case.write(pipeline, 4)
    door.fail(len(door.seen) + (4 if transaction else 2), "cut")
    if case is CASES["time_shard"]:
        # Its messages have their ids, so that redis-py may send them again.
        assert len(pipeline.execute()) == 2
    else:
        with pytest.raises(redis.ConnectionError, match=UNKNOWN):
            pipeline.execute()
    assert len(pipeline) == 0
    assert case.numbers(case.read(structure, 20)) == [0, 1, 2, 3, 4]


class Later:
    """A clock by which consumers have the time shard that producers have now."""

    def time(self) -> float:
        """Return Unix seconds, two turns ahead."""
        return time.time() + 2 * LONG


def reader_of(kind: str, client: Any) -> Any:
    if kind == "time_shard":
        return TimeShardQueue(RedisStore(client), "q", 4, LONG, clock=Later())
    return CASES[kind].make(client)


def reading(kind: str, pipeline: Any, n: int) -> Any:
    if kind == "time_shard":
        return pipeline.take_many("me", n)
    return CASES[kind].read(pipeline, n)


def free(kind: str, client: Any) -> list[tuple[int, int]]:
    """Read all that nobody has; return the number and the attempts of each."""
    reader = reader_of(kind, client)
    found = (
        reader.take_many("other", 9)
        if kind == "time_shard"
        else reader.read_many(*(["g"] if kind == "shuffle" else []), "other", 9)
    )
    return list(zip(CASES[kind].numbers(found), (each.attempts for each in found), strict=True))


@QUEUES
@pytest.mark.parametrize("transaction", [True, False])
def test_a_read_whose_reply_is_cut_off_is_given_back(
    door: FaultyServer, redis7: RedisServer, kind: str, transaction: bool
) -> None:
    case, direct = CASES[kind], redis7.client()
    writer = case.make(direct)
    case.write(writer, 0)
    client = redis.Redis(port=door.port, retry=Retry(NoBackoff(), 0), protocol=2)
    pipeline = reader_of(kind, client).pipeline(transaction)
    (found,) = reading(kind, pipeline, 1).execute()
    assert case.numbers(found) == [0]
    case.settle(writer, found)
    written(case, writer, 4, 1)
    reading(kind, pipeline, 1)
    reading(kind, pipeline, 1)
    pipeline.set("reader", "me")
    door.fail(len(door.seen) + (5 if transaction else 3), "cut")
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    assert direct.get("reader") == b"me"
    assert sorted(free(kind, direct)) == [(number, 1) for number in range(1, 5)]


@QUEUES
def test_what_was_read_beside_an_error_is_given_back_unless_it_is_returned(
    redis7: RedisServer, kind: str
) -> None:
    case, client = CASES[kind], redis7.client()
    client.set("text", "no list")
    written(case, case.make(client), 4)
    pipeline = reader_of(kind, client).pipeline()
    reading(kind, pipeline, 2)
    pipeline.lpush("text", "x")
    with pytest.raises(ResponseError, match=r"^command 2 of the pipeline: WRONGTYPE"):
        pipeline.execute()
    reading(kind, pipeline, 2)
    pipeline.lpush("text", "x")
    found, refused = pipeline.execute(raise_on_error=False)
    assert isinstance(refused, ResponseError)
    assert sorted(each.attempts for each in found) == [1, 1]
    left = free(kind, client)
    assert sorted([*case.numbers(found), *(number for number, _ in left)]) == [0, 1, 2, 3]


@QUEUES
def test_an_interrupted_pipeline_gives_back(redis7: RedisServer, kind: str) -> None:
    case, client = CASES[kind], redis7.client()
    written(case, case.make(client), 3)
    pipeline = reader_of(kind, client).pipeline()
    reading(kind, pipeline, 2)

    class Interrupted(BaseException):
        """As a signal handler raises it."""

    read_response = redis.client.Pipeline.parse_response

    def interrupted(*args: Any, **options: Any) -> Any:
        read_response(*args, **options)
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.client.Pipeline, "parse_response", interrupted)
        # The openings go on the client itself.
        with pytest.raises(Interrupted):
            pipeline.execute()
    assert sorted(free(kind, client)) == [(0, 1), (1, 1), (2, 1)]


@QUEUES
def test_a_piece_that_is_cut_off_is_given_back(
    door: FaultyServer, redis7: RedisServer, kind: str
) -> None:
    case, direct = CASES[kind], redis7.client()
    writer = case.make(direct)
    written(case, writer, 205)
    client = redis.Redis(port=door.port, retry=Retry(NoBackoff(), 0), protocol=2)
    pipeline = reader_of(kind, client).pipeline()
    (first,) = reading(kind, pipeline, 1).execute()
    reading(kind, pipeline, 150)
    reading(kind, pipeline, 1)
    pipeline.set("reader", "me")
    # MULTI, three commands and EXEC; then the second piece of the first read.
    door.fail(len(door.seen) + 6, "cut")
    found, one, is_set = pipeline.execute()
    assert is_set
    had = case.numbers([*first, *found, *one])
    assert len(had) == len(set(had)) == 102
    left = [pair for _ in range(13) for pair in free(kind, direct)]
    assert sorted(number for number, _ in left) == sorted(set(range(205)) - set(had))
    assert {attempts for _, attempts in left} == {1}


@pytest.mark.parametrize("raises", [False, True])
def test_a_read_that_is_cut_off_without_a_result_is_given_back(
    door: FaultyServer, redis7: RedisServer, raises: bool
) -> None:
    case, direct = CASES["time_shard"], redis7.client()
    writer = case.make(direct)
    written(case, writer, 3)
    client = redis.Redis(port=door.port, retry=Retry(NoBackoff(), 0), protocol=2)
    reader_of("time_shard", client).take("me", drain_all=True)
    pipeline = case.make(client).pipeline()
    pipeline.stats().execute()
    pipeline.take("me", drain_all=True).set("reader", "me").take_many("me", 1, drain_all=True)
    # MULTI, three commands and EXEC; behind it the two takes look at the other time shards, the
    # producers' as the third one.
    door.fail(len(door.seen) + 7, "cut")
    if raises:
        with pytest.raises(redis.ConnectionError):
            pipeline.execute()
        assert free("time_shard", direct) == [(1, 1), (2, 1)]
        return
    lost, is_set, found = pipeline.execute(raise_on_error=False)
    assert isinstance(lost, redis.ConnectionError)
    assert is_set
    assert case.numbers(found) == [2]
    assert free("time_shard", direct) == [(1, 1)]


@EACH
def test_asyncio(any_server: AnyServer, case: Case) -> None:
    async def main() -> None:
        client, other = any_server.async_client(), any_server.async_client()
        try:
            structure = case.make_async(client)
            async with structure.pipeline() as pipeline:
                for number in range(3):
                    case.write(pipeline, number)
                case.read(pipeline, 2)
                pipeline.incr("visits")
                *_, found, visits = await pipeline.execute()
                assert (case.numbers(found), visits, len(pipeline)) == ([0, 1], 1, 0)
                case.settle(pipeline, found)
                case.write(pipeline, 3)
                first, second = await asyncio.gather(pipeline.execute(), pipeline.execute())
                assert (first[0], len(first), second) == (2, 2, [])
                case.write(pipeline, 4)
            assert len(pipeline) == 0
            # A connection of which the first await is that of its making.
            running = case.make_async(other).pipeline()
            case.write(running, 5)
            task = asyncio.ensure_future(running.execute())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            case.write(running, 6)
            assert len(await running.execute()) == 1
            assert 6 in case.numbers(await case.read(structure, 9))
        finally:
            await client.aclose()
            await other.aclose()

    asyncio.run(main())


def test_a_queue_that_has_gone_is_made_again_by_a_pipeline(redis7: RedisServer) -> None:
    client = counting(redis7)
    queue = FairQueue(client, "q")
    queue.write("t", {"n": 0})
    client.flushall()
    pipeline = queue.pipeline()
    for number in range(10):
        pipeline.write("t", {"n": number})
    spent = trips(pipeline.execute)
    assert _fields(queue.read_many("me", 20)) == list(range(10))
    # The namespace is looked at once, and each of the others is repeated.
    assert spent <= 18


def test_one_full_account_is_told_and_the_others_are_written(redis7: RedisServer) -> None:
    queue = FairQueue(redis7.client(), "q")
    queue.set_rule("small", max_length=1)
    pipeline = queue.pipeline().write("small", {"n": 1}).write("small", {"n": 2})
    pipeline.write("large", {"n": 3}).write_many([NewMessage("large", {"n": 4})])
    first, full, third, many = pipeline.execute(raise_on_error=False)
    assert isinstance(full, QueueFull)
    assert queue.length() == 3
    assert all(isinstance(each, str) for each in (first, third, *many))


def test_writes_of_a_new_process_know_the_groups(redis7: RedisServer) -> None:
    client = counting(redis7)
    ShuffleQueue(client, "q").read("g", "me")
    queue = ShuffleQueue(client, "q")
    pipeline = queue.pipeline()
    for number in range(5):
        pipeline.write("t", {"n": number})
    # The layout, the groups, and the writes.
    assert trips(pipeline.execute) <= 4
    # A group joins, of which this process knows nothing.
    first = ShuffleQueue(client, "q").read("h", "me")
    assert first is not None
    for number in range(5, 10):
        pipeline.write("t", {"n": number})
    ids = pipeline.execute()
    for group, had in (("g", []), ("h", [first])):
        found = [*had, *ShuffleQueue(client, "q").read_many(group, "me", 20)]
        assert sorted(_fields(found)) == list(range(10))
        assert [each.id for each in found if int(each.fields[b"n"]) == 5] == ids[:1]


def test_a_group_that_joins_by_the_pipeline_itself(redis7: RedisServer) -> None:
    queue = ShuffleQueue(redis7.client(), "q")
    queue.write("t", {"n": 0})
    pipeline = queue.pipeline()
    pipeline.write("t", {"n": 1}).read_many("new", "me", 9)
    _, found = pipeline.execute()
    assert sorted(_fields(found)) == [0, 1]


def test_appends_keep_their_order_however_the_log_grows(redis7: RedisServer) -> None:
    client = redis7.client()
    for grown in (0, 1, 2, 3, 5, 8, 30, 400):
        name = f"grown{grown}"
        log, others = Log(client, name, 3), Log(client, name, 3)
        log.append(b"first")
        pipeline = log.pipeline()
        lengths = [4, 1, 1, 9, 1, 2, 1, 1, 1, 1]
        expected = []
        for number, length in enumerate(lengths):
            batch = [b"%d.%d" % (number, each) for each in range(length)]
            expected += batch
            pipeline.append(*batch)
        pipeline.incr("visits")
        if grown:
            others.append(*[b"other"] * grown)
        offsets = pipeline.execute()[:-1]
        assert log.read(grown + 1, 99) == expected
        assert offsets == [grown + 1 + sum(lengths[:number]) for number in range(len(lengths))]
        assert log.length() == 1 + grown + len(expected)


def test_a_log_that_was_made_anew_meanwhile(redis7: RedisServer) -> None:
    log = Log(redis7.client(), "log", 3)
    log.append(*[b"old"] * 20)
    Log(redis7.client(), "log", 3).delete()
    Log(redis7.client(), "log", 5).append(b"new")
    pipeline = log.pipeline().append(b"a").append(b"b", b"c").append(b"d")
    assert pipeline.execute() == [1, 2, 4]
    assert log.read(0, 9) == [b"new", b"a", b"b", b"c", b"d"]


def test_more_appends_than_are_told_of_all_blocks(redis7: RedisServer) -> None:
    log = Log(redis7.client(), "log", 1)
    pipeline = log.pipeline()
    for number in range(100):
        pipeline.append(b"%d" % number)
    assert pipeline.execute() == list(range(100))
    assert log.read(0, 200) == [b"%d" % number for number in range(100)]


def test_kept_entries_and_wrong_appends(redis7: RedisServer) -> None:
    log = Log(redis7.client(), "log", 2)
    pipeline = log.pipeline()
    for number in range(9):
        pipeline.append(b"%d" % number, keep=3)
    with pytest.raises(ConfigurationError, match="no backlog="):
        pipeline.append(b"a", backlog=3)  # type: ignore[call-arg, arg-type]
    with pytest.raises(ConfigurationError, match="0 entries cannot be appended"):
        pipeline.append()
    assert pipeline.execute() == list(range(9))
    assert log.append(b"9", keep=3) == 9
    assert 3 <= log.length() <= 4
    assert log.read(log.last())[0] == b"9"


def test_waiting_members_are_woken_by_the_appends_of_a_pipeline(redis7: RedisServer) -> None:
    client = redis7.client()
    log = Log(client, "log")
    group = log.group("g")
    group.offset()

    async def main() -> Any:
        waiting = asyncio.to_thread(group.read, 2, 20)
        task = asyncio.ensure_future(waiting)
        for _ in range(2000):
            if (await asyncio.to_thread(group.stats)).waiting:
                break
            await asyncio.sleep(0.01)
        pipeline = Log(client, "log").pipeline().append(b"a").append(b"b")
        before = time.monotonic()
        await asyncio.to_thread(pipeline.execute)
        return await task, time.monotonic() - before

    found, _ = asyncio.run(main())
    assert [each.entry for each in found][:1] == [b"a"]


def test_a_group_reads_and_acknowledges_with_the_users_own_commands(any_server: AnyServer) -> None:
    client = any_server.client()
    log = Log(client, "log", 5)
    log.append(*[b"%d" % number for number in range(12)])
    group = log.group("g", ack=True)
    pipeline = group.pipeline()
    done: list[bytes] = []
    for _ in range(4):
        (entries,) = pipeline.read(4).execute()
        done += [each.entry for each in entries]
        pipeline.ack(*entries).set("{log}result", len(done)).stats()
        assert pipeline.execute()[:2] == [len(entries), True]
    assert done == [b"%d" % number for number in range(12)]
    assert group.stats().pending == 0
    with pytest.raises(ConfigurationError, match="is a plain one"):
        log.group("plain").pipeline().ack(1)


def test_an_asyncio_group(redis7: RedisServer) -> None:
    async def main() -> Any:
        client = redis7.async_client()
        log = AsyncLog(client, "log")
        await log.append(b"a", b"b")
        async with log.group("g", ack=True).pipeline() as pipeline:
            (entries,) = await pipeline.read(2).execute()
            done = await pipeline.ack(*entries).incr("done").execute()
        await client.aclose()
        return [each.entry for each in entries], done

    assert asyncio.run(main()) == ([b"a", b"b"], [2, 1])


def test_a_queue_in_cassandra_has_no_pipeline() -> None:
    class CassandraStore:
        """A store whose database is no Redis."""

        asynchronous = False

        def bind(self, *_: Any) -> Any:
            """Return nothing: the queue is not used."""

    queue = TimeShardQueue(CassandraStore(), "q")
    with pytest.raises(ConfigurationError) as refused:
        queue.pipeline()
    assert str(refused.value) == (
        "a queue in a CassandraStore has no pipeline, because its database has none: call the"
        " methods of the queue, or keep it in a RedisStore"
    )


@EACH
def test_the_rights_of_the_structure_are_enough(redis7: RedisServer, case: Case) -> None:
    assert case.make(redis7.client()).access.allowed() >= {"MULTI", "EXEC"}


@EACH
def test_no_call_is_missing_on_the_pipeline(redis7: RedisServer, case: Case) -> None:
    structure = case.make(redis7.client())
    operations = {
        name
        for name in dir(type(structure))
        if hasattr(getattr(type(structure), name), "steps")
        or hasattr(getattr(type(structure), name), "asking")
    }
    pipeline = structure.pipeline()
    assert len(operations) > 6
    for name in operations:
        call = getattr(type(pipeline), name)
        assert call.__doc__, name
    # Names that are taken by the structure are there beside.
    pipeline.plain.delete("x").plain.append("y", "z")
    assert pipeline.execute() == [0, 1]
