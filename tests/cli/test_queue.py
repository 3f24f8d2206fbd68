"""`workstealing queue observe`: looks at both kinds of queues on real servers, and wrong use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.completions import offered_by_bash
from support.processes import free_port
from support.servers import RedisCluster3, RedisServer
from support.terminals import on_terminal
from workstealing.cli.queue import shuffle
from workstealing.structures import ShuffleQueue
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue

pytestmark = pytest.mark.real

EMPTY = {"waiting": 0, "due": 0, "leased": 0, "consumed": 0, "dead": 0, "total": 0}


@pytest.fixture
def mails(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> ShuffleQueue:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    return ShuffleQueue(redis7.client(), "mails")


@pytest.fixture
def reminders(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> TimeShardQueue:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    return TimeShardQueue(RedisStore(redis7.client()), "mails", shards=5, period=3600)


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REDIS_URL", "WORKSTEALING_REDIS_URL"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the following arguments are required: NAME;"),
        (("q", "r"), "unrecognized arguments: r"),
        (("q", "--gro", "g"), "unrecognized arguments: --gro"),
        (("q", "--kind", "ick"), "invalid choice: 'ick'"),
        (("q", "--interval", "0"), "too short"),
        (("q", "--times", "2", "--interval", "1e12"), "is too long: at most 36500d"),
        (("q", "--once", "--times", "2"), "not allowed with argument --once"),
        (("q", "--once"), "no Redis was named: give --url, or set WORKSTEALING"),
        (("q", "--kind", "time", "--group", "g"), "--group is for a ShuffleQueue, and this is a T"),
        (("q", "--cassandra", "cassandra://h/k", "--group", "g"), "--group is for a ShuffleQueue"),
        (("q", "--cassandra", "cassandra://h/k", "--kind", "shuffle"), "has no ShuffleQueue"),
        (("q", "--cassandra", "cassandra://h/k", "--url", "redis://h"), "not allowed with"),
        (("q", "--cassandra", "redis://h/k"), "--cassandra is not usable: give cassandra://host"),
        (("q", "--cassandra", "cassandra://h"), "--cassandra is not usable: give cassandra://host"),
        (("q", "--cassandra", "cassandra://u:p@h:x/k"), "--cassandra is not usable: give cassand"),
        (
            ("q", "--cassandra", "cassandra://no.invalid/k"),
            "the Cassandra at --cassandra cannot be",
        ),
    ],
)
def test_wrong_use(command: Any, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in command.refused("queue", "observe", *arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("mails", "--once", "--group", ""), "the group '' is not usable"),
        (("", "--once"), "name"),
    ],
)
def test_wrong_names(
    command: Any, mails: ShuffleQueue, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in command.refused("queue", "observe", *arguments, "--kind", "shuffle")
    assert mails.client.dbsize() == 0


def test_bash_completes(command: Any, tmp_path: Path) -> None:
    typed = ("workstealing", "queue", "observe", "--kind", "t")
    assert offered_by_bash(command("completion", "bash"), typed, tmp_path) == {"time"}


def test_the_kind_is_that_of_what_is_there(command: Any, mails: ShuffleQueue) -> None:
    said = command.refused("queue", "observe", "mails", "--once")
    assert "there is no queue 'mails' in this Redis: check the name and --url" in said
    mails.write("acme", {"a": "b"})
    assert command.json("queue", "observe", "mails", "--once")["kind"] == "shuffle"
    # A plain stream of other producers is a queue that nobody has moved yet.
    mails.client.xadd("plain", {"a": "b"})
    assert command.json("queue", "observe", "plain", "--once")["kind"] == "shuffle"
    TimeShardQueue(RedisStore(mails.client), "mails", period=3600).put("x")
    both = command.refused("queue", "observe", "mails", "--once")
    assert "there is a ShuffleQueue and a TimeShardQueue 'mails': say which by --kind" in both
    assert command.json("queue", "observe", "mails", "--kind", "shuffle")["kind"] == "shuffle"
    assert command.json("queue", "observe", "mails", "--kind", "time")["kind"] == "time"
    mails.client.delete("ws:shuffle_queue:mails")
    TimeShardQueue(RedisStore(mails.client), "alone", period=3600).put("x")
    said = command.refused("queue", "observe", "alone", "--group", "g")
    assert "--group is for a ShuffleQueue, and this is a TimeShardQueue: leave it out" in said


def test_it_lists_what_is_dead_and_overdue_and_says_how_much_more_there_is(
    command: Any, mails: ShuffleQueue
) -> None:
    observe = ("queue", "observe", "mails", "--once")
    mails.read("first", "c")
    for number in range(7):
        mails.write("acme", {"n": number}, deadline=1000 + number, tracking_id=f"t-{number}")
        parts = ("3", "1", str(1000 * number), "n", "1", "ws:tenant", "acme")
        grave = "".join(f"{len(part)}:{part}," for part in parts)
        mails.client.hset(mails.keys.group("first").dead, f"3:1-{number}", grave)
    said = command.json(*observe)
    assert (said["overdue"]["total"], said["overdue"]["more"]) == (7, 2)
    assert [each["tracking_id"] for each in said["overdue"]["listed"]] == [
        f"t-{number}" for number in range(5)
    ]
    (group,) = said["groups"]
    assert (group["dead_messages"]["total"], group["dead_messages"]["more"]) == (7, 2)
    assert group["dead_messages"]["listed"][1] == {
        "id": "3-1-1",
        "tenant": "acme",
        "attempts": 3,
        "set_aside": 1.0,
    }
    text = command(*observe)
    assert "messages past their deadline, the oldest first, and 2 more" in text
    assert "dead messages of first, the oldest first, and 2 more" in text
    assert "t-4" in text
    assert "t-5" not in text


def test_it_shows_every_group_and_changes_nothing(command: Any, mails: ShuffleQueue) -> None:
    observe = ("queue", "observe", "mails", "--once")
    assert command(*observe, "--kind", "shuffle") == (
        "ShuffleQueue mails: 0 messages, and no group has read yet\n\n"
    )
    assert mails.client.dbsize() == 0
    for number in range(12):
        mails.write(f"tenant {number % 2} \x1b[31m", {"message": str(number)})
    one, two, _ = (mails.read("first", "c") for _ in range(3))
    mails.nack(one)
    mails.nack(two, delay=3600)
    mails.read("second", "d")
    mails.client.xadd("mails", {"old": "way"})
    before = {key: mails.client.dump(key) for key in mails.client.scan_iter()}
    said = command.json(*observe)
    assert {key: mails.client.dump(key) for key in mails.client.scan_iter()} == before
    assert (said["kind"], said["queue"], said["length"]) == ("shuffle", "mails", 13)
    first = said["groups"][0]
    assert [each["group"] for each in said["groups"]] == ["first", "second"]
    counts = [
        {name: group[name] for name in ("waiting", "pending", "returned", "delayed", "dead")}
        for group in said["groups"]
    ]
    assert counts == [
        {"waiting": 10, "pending": 1, "returned": 1, "delayed": 1, "dead": 0},
        {"waiting": 12, "pending": 1, "returned": 0, "delayed": 0, "dead": 0},
    ]
    assert sum(each["length"] for each in first["streams"].values()) == 12
    assert first["legacy"]["length"] == 1
    assert set(first["tenants"]) >= {"tenant 0 \x1b[31m", "tenant 1 \x1b[31m"}
    assert first["pickup_delay"]["p50_ms"] <= first["pickup_delay"]["p99_ms"]
    assert sum(first["pickup_delay_ms"].values()) == 3
    assert first["oldest_waiting_seconds"] > 0
    (alone,) = command.json(*observe, "--group", "first")["groups"]
    assert alone["group"] == "first"
    text = command(*observe)
    assert "\x1b" not in text
    assert "group first: 10 waiting, 1 pending, 1 returned, 1 delayed, 0 dead" in text
    assert "the oldest has waited" in text
    assert "(50 %)" in text
    (row,) = [each for each in text.splitlines() if each.startswith("tenant 0 \\x1b[31m")][:1]
    assert row
    assert [each.split()[1:] for each in text.splitlines() if each.startswith("all ")] == [
        ["10", "1", "1", "1", "13"],
        ["12", "1", "0", "0", "13"],
    ]


def test_a_queue_of_many_streams_fits_a_terminal(
    command: Any, mails: ShuffleQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shuffle, "ROWS", 3)
    monkeypatch.setattr(shuffle, "TENANTS", 2)
    for number in range(9):
        mails.write(f"tenant {number}", {"message": "x"})
    for _ in range(12):
        mails.write("loud", {"message": "x"})
    text = command("queue", "observe", "mails", "--once", "--group", "g")
    count = len(mails.stats("g")["streams"])
    assert f"the 3 longest of {count} streams" in text
    assert "tenants with the most of 10\n" in text
    table = text.partition("tenants")[0]
    streams = [int(line.split()[0]) for line in table.splitlines() if line[:1].isdigit()]
    assert len(streams) == 3
    assert streams == sorted(streams)
    assert set(streams) <= set(mails.streams_of("loud"))
    assert "\nloud " in text


def test_a_single_look_needs_no_extra_on_a_terminal_either(
    command: Any, mails: ShuffleQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails.write("acme", {"message": "hello"})
    for module in ("rich", "rich.console", "rich.live"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "ShuffleQueue mails: 1 message" in command("queue", "observe", "mails", "--once")
    assert "workstealing[cli]" in command.refused("queue", "observe", "mails")


@pytest.mark.slow
def test_it_draws_in_place_on_a_terminal(mails: ShuffleQueue) -> None:
    for number in range(3):
        mails.write("acme \x1b[31m", {"message": str(number)})
    mails.read("g", "c")
    drawn, _ = on_terminal("queue", "observe", "mails", "--times", "2", "--interval", "10ms")
    assert b"ShuffleQueue mails: 3 messages" in drawn
    assert b"group g: 2 waiting, 1 pending" in drawn
    # The tenant's name is text: it has turned nothing red by itself.
    assert b"acme \\x1b[31m" in drawn


def test_it_shows_each_time_shard_and_writes_nothing(command: Any, redis7: RedisServer) -> None:
    client = redis7.client()
    arguments = ("queue", "observe", "mails", "--url", redis7.url)
    unknown = command.json(*arguments, "--once", "--kind", "time")
    assert (len(unknown["time_shards"]), unknown["total"], unknown["period_seconds"]) == (
        6,
        0,
        60.0,
    )
    assert client.dbsize() == 0
    queue = TimeShardQueue(RedisStore(client), "mails", shards=7, period=3600)
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
    assert busy["overdue_seconds"] == seen["overdue_seconds"] > 0
    text = command(*arguments, "--once")
    assert "TimeShardQueue mails: 4 messages; the oldest is overdue by" in text
    (row,) = [line for line in text.splitlines() if line.startswith(f"{busy['time_shard']} ")]
    assert row.split()[1:8] == [busy["role"], "3", "2", "1", "0", "0", "4"]


def test_it_looks_again_and_again(command: Any, reminders: TimeShardQueue) -> None:
    reminders.open()
    arguments = ("queue", "observe", "mails", "--times", "3", "--interval", "1ms")
    assert command(*arguments).count("TimeShardQueue mails") == 3
    assert len(command.json(*arguments)["looks"]) == 3


def test_a_look_that_fails_is_said_and_the_next_one_comes(
    command: Any, reminders: TimeShardQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reminders.open()
    seen, observe = [], TimeShardQueue.stats

    def fail_first(self: TimeShardQueue) -> Any:
        seen.append(1)
        if len(seen) == 1:
            raise ConnectionError("cut\x1b[31m")
        return observe(self)

    monkeypatch.setattr(TimeShardQueue, "stats", fail_first)
    arguments = ("queue", "observe", "mails", "--interval", "1ms")
    text = command(*arguments, "--times", "2")
    assert "! the queue could not be asked: ConnectionError: cut\\x1b[31m" in text
    assert "TimeShardQueue mails: 0 messages" in text
    seen.clear()
    assert "could not be asked" in command(*arguments, "--once", status=1)
    seen.clear()
    assert command.json(*arguments, "--once", status=1)["trouble"].startswith("ConnectionError")


def test_nobody_listens_there(command: Any) -> None:
    said = command.refused("queue", "observe", "mails", "--url", f"redis://127.0.0.1:{free_port()}")
    assert "the Redis at --url cannot be used" in said


@pytest.mark.cluster
def test_a_cluster_is_used_like_a_server(command: Any, cluster: RedisCluster3) -> None:
    client = cluster.client()
    ShuffleQueue(client, "mails").write("acme", {"a": "b"})
    TimeShardQueue(RedisStore(client), "reminders", period=3600).put("x")
    assert command.json("queue", "observe", "mails", "--url", cluster.url)["length"] == 1
    assert command.json("queue", "observe", "reminders", "--url", cluster.url)["total"] == 1


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in which $W is the command, by a shell, which can close what Python cannot."""
    source = "import sys; from workstealing.cli import main; sys.exit(main())"
    command = f"{sys.executable} -c '{source}'"
    return subprocess.run(
        ["/bin/sh", "-c", line.replace("$W", command)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(os.environ),
    )


@pytest.mark.slow
def test_who_closes_stdout_wants_to_hear_nothing(mails: ShuffleQueue) -> None:
    mails.write("t", {"a": "b"})
    ended = shell("$W queue observe mails --once >&-")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert shell("$W queue observe mails --once >&- 2>&-").returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_no_fault_of_the_redis(mails: ShuffleQueue) -> None:
    mails.write("t", {"a": "b"})
    ended = shell("$W queue observe mails --once >/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "workstealing: stdout cannot be written to: No space left on device\n"
    assert shell("$W doctor >/dev/full").returncode == 1


@pytest.mark.cassandra
class TestCassandra:
    def test_a_queue_of_another_rotation(self, cassandra: CassandraServer, command: Any) -> None:
        queue: TimeShardQueue = TimeShardQueue(cassandra.store(), "mails", shards=5, period=3600)
        for message, due in (("now", None), ("too", None), ("later", timedelta(hours=2))):
            queue.put(message, due)
        at = f"cassandra://127.0.0.1:{cassandra.node.cql}/{KEYSPACE}/{cassandra.table}"
        before = cassandra.rows()
        seen = command.json("queue", "observe", "mails", "--cassandra", at, "--once")
        assert (seen["kind"], seen["period_seconds"], len(seen["time_shards"])) == ("time", 3600, 5)
        assert (seen["waiting"], seen["due"], seen["total"]) == (3, 2, 3)
        assert "TimeShardQueue mails: 3 messages" in command(
            "queue", "observe", "mails", "--cassandra", at, "--times", "2", "--interval", "100ms"
        )
        assert cassandra.rows() == before

    def test_what_is_not_there(self, cassandra: CassandraServer, command: Any) -> None:
        at = f"cassandra://cassandra:secret@127.0.0.1:{cassandra.node.cql}/{KEYSPACE}"
        said = command.refused(
            "queue", "observe", "mails", "--cassandra", f"{at}/{cassandra.table}"
        )
        assert "there is no queue 'mails' in workstealing.queues: check the name and" in said
        said = command.refused("queue", "observe", "mails", "--cassandra", f"{at}/others")
        assert "workstealing.others cannot be read" in said
        nobody = f"cassandra://cassandra:secret@127.0.0.1:{free_port()}/{KEYSPACE}"
        said = command.refused("queue", "observe", "mails", "--cassandra", nobody)
        assert "the Cassandra at --cassandra cannot be used" in said
        assert "secret" not in said
