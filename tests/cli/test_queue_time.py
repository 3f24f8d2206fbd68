"""`workstealing queue` with a TimeShardQueue on real servers."""

from __future__ import annotations

import io
import json
import sys
import time
from typing import Any

import pytest

from support.processes import free_port
from support.servers import RedisCluster3, RedisServer
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue

pytestmark = pytest.mark.real

EMPTY = {"waiting": 0, "due": 0, "leased": 0, "consumed": 0, "dead": 0, "total": 0}


def lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed, a line each."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def queue(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> TimeShardQueue:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    return TimeShardQueue(RedisStore(redis7.client()), "mails", shards=5, period_s=3600)


def take(queue: TimeShardQueue) -> list[bytes]:
    return [each.message for each in queue.take_many("a test", 100, drain_all=True)]


def test_arguments_become_messages(command: Any, queue: TimeShardQueue) -> None:
    queue.open()
    said = command("queue", "produce", "mails", "hello", "caf\u00e9 \udcff", "")
    assert len(said.split()) == 3
    taken = queue.take_many("a test", 100, drain_all=True)
    assert [each.id for each in taken] == said.split()
    # Bytes that are no text come through a command line unharmed.
    assert [each.message for each in taken] == [b"hello", "caf\u00e9 ".encode() + b"\xff", b""]


def test_lines_become_messages(
    command: Any, queue: TimeShardQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.open()
    given = io.TextIOWrapper(io.BytesIO(b"one\ntwo \xff\r\n\nfour"))
    monkeypatch.setattr(sys, "stdin", given)
    said = lines(command("queue", "produce", "mails", "--due", "@1795334400", "--json"))
    assert [each["due"] for each in said] == [1_795_334_400.0] * 4
    client = queue.store.client
    names = queue.time_shards.names(int(said[0]["id"].partition("-")[0]))
    kept = client.hgetall(names.messages)
    assert [kept[each["id"].encode()] for each in said] == [b"one", b"two \xff\r", b"", b"four"]
    assert set(dict(client.zrange(names.waiting, 0, -1, withscores=True)).values()) == {
        1_795_334_400_000.0
    }


def test_no_more_lines_are_read_than_were_asked_for(
    command: Any, queue: TimeShardQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.open()
    given = io.TextIOWrapper(io.BytesIO(b"one\ntwo\nthree\n"))
    monkeypatch.setattr(sys, "stdin", given)
    assert len(command("queue", "produce", "mails", "--count", "2").split()) == 2
    assert take(queue) == [b"one", b"two"]


def test_messages_are_repeated(command: Any, queue: TimeShardQueue) -> None:
    queue.open()
    begun = time.monotonic()
    command("queue", "produce", "mails", "a", "b", "--count", "5", "--every", "10ms")
    assert time.monotonic() - begun >= 0.04
    assert take(queue) == [b"a", b"b", b"a", b"b", b"a"]


def test_ctrl_c_ends_what_has_no_end(
    command: Any, queue: TimeShardQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.open()

    waits: list[float] = []

    def interrupt(seconds: float) -> None:
        waits.append(seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr("workstealing.cli.queue_produce.time.sleep", interrupt)
    assert len(command("queue", "produce", "mails", "a", "--every", "1s").split()) == 1
    assert command.err == ""
    command("queue", "produce", "mails", "a", "--every", "1s", "--count", "2", status=130)
    assert command.err == ""
    assert (take(queue), waits) == ([b"a"] * 2, [1.0, 1.0])
    # Nothing is there, and nothing ever comes.
    assert command("queue", "consume", "mails") == ""
    assert command("queue", "consume", "mails", "--block", "1s", status=130) == ""
    assert command.err == ""


def test_what_is_due_later_waits(command: Any, queue: TimeShardQueue) -> None:
    queue.open()
    (soon, late) = (
        lines(command("queue", "produce", "mails", "x", "--json", *more))[0]
        for more in ((), ("--delay", "1h"))
    )
    assert (soon["due_after_s"], late["due_after_s"]) == (None, 3600.0)
    said = command.json("queue", "observe", "mails", "--once")
    assert (said["waiting"], said["due"], said["total"]) == (2, 1, 2)
    (taken,) = lines(command("queue", "consume", "mails", "--drain-all", "--block", "0", "--json"))
    assert taken["id"] == soon["id"]


def test_messages_come_at_their_turn(command: Any, redis7: RedisServer) -> None:
    arguments = ("mails", "--kind", "time", "--url", redis7.url, "--period", "150ms")
    begun = time.monotonic()
    command("queue", "produce", *arguments, "a", "b")
    (a, b) = lines(command("queue", "consume", *arguments, "--count", "2", "--json"))
    # One to two periods later, and not at all by looking everywhere.
    assert time.monotonic() - begun >= 0.15
    assert (a["message"], b["message"], a["attempts"]) == ("a", "b", 1)
    assert a["time_shard"] in range(4)
    known = TimeShardQueue(RedisStore(redis7.client()), "mails", shards=4, period_s=0.15)
    assert sum(each.total for each in known.observe()) == 0


def test_what_is_printed_is_acknowledged(command: Any, queue: TimeShardQueue) -> None:
    put = [queue.put(message) for message in (b"hello", b"\x1b[31mred\n\xff", "\u202ecaf\u00e9")]
    said = command("queue", "consume", "mails", "--drain-all", "--block", "0")
    assert said.splitlines() == [
        f"{put[0]}  hello",
        f"{put[1]}  \\x1b[31mred\\n\\xff",
        f"{put[2]}  \\u202ecaf\u00e9",
    ]
    assert command.err == "3 messages: 3 acknowledged\n"
    assert sum(each.total for each in queue.observe()) == 0


def test_what_is_not_acknowledged_stays_leased(command: Any, queue: TimeShardQueue) -> None:
    queue.put("hello")
    drain = ("queue", "consume", "mails", "--drain-all", "--block", "0", "--no-ack")
    (taken,) = lines(command(*drain, "--consumer", "me", "--json"))
    assert taken["consumer"] == "me"
    assert 30 < taken["lease_end"] - time.time() <= 60
    assert command(*drain) == ""
    assert queue.release(taken["id"])
    (taken,) = lines(command(*drain, "--lease", "1ms", "--count", "1", "--json"))
    assert taken["lease_end"] - time.time() <= 0.001
    # The released attempt is forgotten; that one is not.
    again = command("queue", "consume", "mails", "--drain-all", "--count", "1", "--no-ack")
    assert again.endswith("hello  (attempt 2)\n")
    assert command.err == "1 message: 0 acknowledged, 1 left unacknowledged\n"
    assert sum(each.leased for each in queue.observe()) == 1


def test_a_share_is_given_back(command: Any, queue: TimeShardQueue) -> None:
    for number in range(9):
        queue.put(str(number))
    drain = ("queue", "consume", "mails", "--drain-all", "--block", "0")
    said = command(*drain, "--fail", "0.3333333333333333", "--delay", "1h")
    assert len(said.splitlines()) == 9
    assert command.err == "9 messages: 6 acknowledged, 3 given back\n"
    assert command(*drain) == ""
    found = queue.observe()
    assert (sum(each.total for each in found), sum(each.due for each in found)) == (3, 0)


@pytest.mark.parametrize("error", [BrokenPipeError, KeyboardInterrupt])
def test_what_nobody_has_seen_is_given_back(
    command: Any,
    queue: TimeShardQueue,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    from workstealing.cli import queue_consume
    from workstealing.cli.arguments import parse
    from workstealing.cli.queue import run

    for number in range(2):
        queue.put(str(number))
    say, said = queue_consume.say, []

    def fail_at_the_second(text: str) -> None:
        if said:
            raise error
        said.append(text)
        say(text)

    monkeypatch.setattr(queue_consume, "say", fail_at_the_second)
    options = parse(["queue", "consume", "mails", "--drain-all"])
    if error is BrokenPipeError:
        with pytest.raises(BrokenPipeError):
            run(options)
    else:
        assert run(options) == 0
    assert take(queue) == [b"1"]


def test_observe_shows_each_time_shard_and_writes_nothing(
    command: Any, redis7: RedisServer
) -> None:
    client = redis7.client()
    arguments = ("queue", "observe", "mails", "--url", redis7.url)
    unknown = command.json(*arguments, "--once", "--kind", "time", "--time-shards", "6")
    assert (len(unknown["time_shards"]), unknown["total"], unknown["period_s"]) == (6, 0, 60.0)
    assert client.dbsize() == 0
    queue = TimeShardQueue(RedisStore(client), "mails", shards=7, period_s=3600)
    for number in range(3):
        queue.put(str(number))
    queue.put("later", due=time.time() + 60)
    queue.take("somebody", drain_all=True)
    before = {key: client.dump(key) for key in client.scan_iter()}
    seen = command.json(*arguments)
    assert {key: client.dump(key) for key in client.scan_iter()} == before
    roles = [each["role"] for each in seen["time_shards"]]
    assert (roles.count("producing"), roles.count("consuming"), len(roles)) == (1, 1, 7)
    together = {name: seen[name] for name in EMPTY}
    assert together == {**EMPTY, "waiting": 3, "due": 2, "leased": 1, "total": 4}
    (busy,) = [each for each in seen["time_shards"] if each["total"]]
    assert {name: busy[name] for name in EMPTY} == together
    assert busy["overdue_s"] == seen["overdue_s"] > 0
    text = command(*arguments, "--once")
    assert "TimeShardQueue mails: 4 messages; the oldest is overdue by" in text
    (row,) = [line for line in text.splitlines() if line.startswith(f"{busy['time_shard']} ")]
    assert row.split()[1:8] == [busy["role"], "3", "2", "1", "0", "0", "4"]


def test_observe_looks_again_and_again(command: Any, queue: TimeShardQueue) -> None:
    queue.open()
    arguments = ("queue", "observe", "mails", "--times", "3", "--interval", "1ms")
    assert command(*arguments).count("TimeShardQueue mails") == 3
    assert len(command.json(*arguments)["looks"]) == 3


def test_the_kind_is_that_of_what_is_there(command: Any, queue: TimeShardQueue) -> None:
    said = command.refused("queue", "consume", "mails")
    assert "there is no queue 'mails' yet: say by --kind shuffle or --kind time" in said
    assert queue.store.client.dbsize() == 0
    queue.open()
    said = command.refused("queue", "produce", "mails", "x", "--tenant", "t")
    assert "--tenant is for a ShuffleQueue, and this is a TimeShardQueue: leave it out" in said
    said = command.refused("queue", "produce", "mails", "x", "--time-shards", "6")
    assert "has 5 time shards with a period of 3600 s, not 6" in said
    assert "give --time-shards 5 and --period 3600, or use another name; nothing was" in said
    assert command.refused("queue", "consume", "mails", "--period", "9").endswith(
        said.partition("not 6 with 3600 s")[2]
    )
    said = command.refused("queue", "produce", "other", "x", "--kind", "time", "--time-shards", "3")
    assert "shards=3 time shards are too few" in said


def test_a_redis_that_fails_on_the_way(command: Any, start_redis: Any) -> None:
    server = start_redis(7, maxmemory="2mb", maxmemory_policy="noeviction")
    arguments = ("--url", server.url, "--kind", "time")
    said = command("queue", "produce", "mails", "x" * 4096, *arguments, "--count", "1000", status=1)
    written = len(said.split())
    assert 0 < written < 1000
    assert "workstealing queue produce: the Redis failed: OutOfMemoryError" in command.err
    assert command.err.count("\n") == 1
    seen = command.json("queue", "observe", "mails", "--url", server.url)
    assert seen["total"] == written


def test_a_look_that_fails_is_said_and_the_next_one_comes(
    command: Any, queue: TimeShardQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.open()
    seen, observe = [], TimeShardQueue.observe

    def fail_first(self: TimeShardQueue) -> Any:
        seen.append(1)
        if len(seen) == 1:
            raise ConnectionError("cut\x1b[31m")
        return observe(self)

    monkeypatch.setattr(TimeShardQueue, "observe", fail_first)
    arguments = ("queue", "observe", "mails", "--interval", "1ms")
    text = command(*arguments, "--times", "2")
    assert "! the queue could not be asked: ConnectionError: cut\\x1b[31m" in text
    assert "TimeShardQueue mails: 0 messages" in text
    seen.clear()
    assert "could not be asked" in command(*arguments, "--once", status=1)
    seen.clear()
    assert command.json(*arguments, "--once", status=1)["trouble"].startswith("ConnectionError")


def test_nobody_listens_there(command: Any) -> None:
    said = command.refused("queue", "consume", "mails", "--url", f"redis://127.0.0.1:{free_port()}")
    assert "the Redis at --url cannot be used" in said


@pytest.mark.cluster
def test_a_cluster_is_used_like_a_server(command: Any, cluster: RedisCluster3) -> None:
    where = ("mails", "--url", cluster.url)
    put = command("queue", "produce", *where, "a", "b", "--kind", "time").split()
    assert command.json("queue", "observe", *where)["total"] == 2
    said = command("queue", "consume", *where, "--drain-all", "--block", "0")
    assert [line.split()[0] for line in said.splitlines()] == put
    assert command.json("queue", "observe", *where)["total"] == 0
