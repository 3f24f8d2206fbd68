"""`workstealing queue` with a ShuffleQueue on real servers."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from support.processes import end, spawn
from support.servers import RedisCluster3, RedisServer, wait_until
from support.terminals import on_terminal
from workstealing.cli import queue_shuffle
from workstealing.structures import ShuffleQueue

pytestmark = pytest.mark.real


def lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed, a line each."""
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def queue(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> ShuffleQueue:
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    return ShuffleQueue(redis7.client(), "mails")


def read(queue: ShuffleQueue, ids: list[str]) -> list[Any]:
    """Read everything, and return the messages of these ids, which must be all."""
    found = {each.id: each for each in queue.read_many("test", "a test", 100)}
    assert set(found) == set(ids)
    return [found[each] for each in ids]


def test_messages_of_tenants_in_turn(command: Any, queue: ShuffleQueue) -> None:
    tenants = ("--tenant", "acme", "--tenant", "bolt \udcff")
    said = command("queue", "produce", "mails", "--kind", "shuffle", *tenants, "a", "b\udcff", "c")
    found = read(queue, said.split())
    assert [each.tenant for each in found] == ["acme", "bolt \\xff", "acme"]
    assert [each.fields for each in found] == [
        {b"message": b"a"},
        {b"message": b"b\xff"},
        {b"message": b"c"},
    ]
    assert {found[0].stream, found[2].stream} <= set(queue.streams_of("acme"))


def test_a_tenants_streams_are_those_of_the_application(command: Any, queue: ShuffleQueue) -> None:
    arguments = ("mails", "--kind", "shuffle", "--tenant", "acme", "x", "--json")
    widths = ("--streams", "1024", "--streams-per-tenant", "1")
    (said,) = lines(command("queue", "produce", *arguments, *widths))
    wide = ShuffleQueue(queue.client, "mails", 1024, 1)
    assert (int(said["id"].split("-")[0]),) == wide.streams_of("acme")
    assert said["tenant"] == "acme"
    said = command.refused("queue", "produce", *arguments[:-1], "--streams", "1000000")
    assert "streams=1000000" in said


def test_a_longer_time_to_live_stays(command: Any, queue: ShuffleQueue) -> None:
    def idle_from() -> float:
        (index,) = queue.client.scan_iter("*:due")
        return float(queue.client.zscore(index, "mails"))

    arguments = ("queue", "produce", "mails", "--tenant", "acme", "x", "--kind", "shuffle")
    command(*arguments, "--ttl", "30d")
    seconds, _ = queue.client.time()
    long = idle_from()
    assert long - 1000 * seconds == pytest.approx(30 * 86_400_000, abs=600_000)
    command(*arguments, "--ttl", "1d")
    command("queue", "consume", "mails", "--group", "g", "--count", "1")
    assert idle_from() == long


def test_a_queue_of_another_namespace_is_not_taken_into_this_one(
    command: Any, queue: ShuffleQueue
) -> None:
    shop = ShuffleQueue(queue.client, "mails", namespace="shop")
    shop.write("acme", {"message": "hello"})
    before = set(queue.client.scan_iter())
    for arguments in (
        ("produce", "mails", "--tenant", "t", "x"),
        ("consume", "mails", "--group", "g"),
    ):
        said = command.refused("queue", *arguments)
        assert "the queue 'mails' is not in the namespace shuffle_queues: give --namespace" in said
    assert set(queue.client.scan_iter()) == before
    assert command.json("queue", "observe", "mails", "--once")["length"] == 1
    consume = ("queue", "consume", "mails", "--group", "g", "--count", "1")
    assert command(*consume, "--namespace", "shop").endswith("  acme  hello\n")
    # And where this namespace is in use, by another queue.
    shop.write("acme", {"message": "hello"})
    queue = ShuffleQueue(queue.client, "others")
    queue.write("acme", {"message": "hello"})
    assert "give --namespace" in command.refused(*consume)


def test_fields(command: Any, queue: ShuffleQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    given = b'{"to": "caf\xc3\xa9", "tries": 3, "parts": ["x"]}\n{"a": "b"}\n[1]\n{"c": "d"}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    said = command(
        *("queue", "produce", "mails", "--kind", "shuffle", "--tenant", "t", "--fields"), status=2
    )
    assert "message 3 is no JSON object with fields, as --fields wants it" in command.err
    assert [each.fields for each in read(queue, said.split())] == [
        {b"to": "caf\u00e9".encode(), b"tries": b"3", b"parts": b'["x"]'},
        {b"a": b"b"},
    ]
    own = command.refused(
        *("queue", "produce", "mails", "--tenant", "t", "--fields", '{"ws:tenant": "u"}')
    )
    assert "'ws:tenant' is the queue's own" in own


def test_a_deadline_is_a_moment_of_the_servers(command: Any, queue: ShuffleQueue) -> None:
    arguments = ("queue", "produce", "mails", "x", "--kind", "shuffle", "--tenant", "t", "--json")
    seconds, microseconds = queue.client.time()
    late = 4_102_444_800.0
    moments = ("@4102444800", "2100-01-01T00:00:00Z", "1h")
    said = [lines(command(*arguments, "--deadline", moment))[0] for moment in moments]
    command(*arguments, "--deadline", "@1")
    assert [each["deadline"] for each in said[:2]] == [late, late]
    soon = said[2]["deadline"]
    assert 0 <= soon - (seconds + microseconds / 1e6 + 3600) < 60
    kept = [each.deadline for each in read(queue, [each["id"] for each in said])]
    assert kept == [late, late, int(soon * 1000) / 1000]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("produce", "mails", "x"), "whose messages are these? a ShuffleQueue is fair to tenants"),
        (("consume", "mails"), "is read by groups, of which each gets every message: give --group"),
        (("consume", "mails", "--group", ""), "the group '' is not usable"),
        (("consume", "mails", "--group", "g", "--consumer", ""), "consumer"),
        (("observe", "mails", "--once", "--group", ""), "the group '' is not usable"),
        (("observe", "mails", "--once", "--namespace", "a b"), "namespace"),
        (("observe", "", "--once"), "name"),
    ],
)
def test_wrong_use(
    command: Any, queue: ShuffleQueue, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in command.refused("queue", *arguments, "--kind", "shuffle")
    assert queue.client.dbsize() == 0


def test_the_kind_is_that_of_what_is_there(command: Any, queue: ShuffleQueue) -> None:
    queue.write("acme", {"a": "b"})
    assert command.json("queue", "observe", "mails", "--once")["kind"] == "shuffle"
    said = command.refused("queue", "produce", "mails", "x", "--due", "5m")
    assert "--due is for a TimeShardQueue, and this is a ShuffleQueue: leave it out" in said
    # A plain stream of other producers is a queue that nobody has moved yet.
    queue.client.xadd("plain", {"a": "b"})
    (said,) = lines(command("queue", "consume", "plain", "--group", "g", "--block", "0", "--json"))
    assert (said["tenant"], said["stream"], said["fields"]) == (None, None, {"a": "b"})
    command("queue", "produce", "mails", "x", "--kind", "time")
    both = command.refused("queue", "observe", "mails", "--once")
    assert "there is a ShuffleQueue and a TimeShardQueue 'mails': say which by --kind" in both
    assert command.json("queue", "observe", "mails", "--kind", "shuffle")["kind"] == "shuffle"


def test_what_is_printed_is_acknowledged(command: Any, queue: ShuffleQueue) -> None:
    ids = [
        queue.write("acme", {"message": b"\x1b[31mred\n\xff"}),
        queue.write("b\x1b[1m\u202e", {"message": "caf\u00e9"}),
        queue.write("acme", {"a": "\x07", "b": "\u00e9"}),
    ]
    said = command("queue", "consume", "mails", "--group", "g", "--block", "0")
    assert sorted(said.splitlines()) == sorted(
        [
            f"{ids[0]}  acme  \\x1b[31mred\\n\\xff",
            f"{ids[1]}  b\\x1b[1m\\u202e  caf\u00e9",
            f'{ids[2]}  acme  {{"a": "\\u0007", "b": "\u00e9"}}',
        ]
    )
    assert command.err == "3 messages: 3 acknowledged\n"
    assert queue.length() == 0


def test_a_message_as_json(command: Any, queue: ShuffleQueue) -> None:
    written = queue.write("acme", {"a": "b"}, deadline=4_102_444_800, tracking_id="t-1")
    consume = ("queue", "consume", "mails", "--group", "g", "--consumer", "me", "--json")
    (said,) = lines(command(*consume, "--count", "1", "--no-ack"))
    assert command.err == ""
    assert 0 <= said.pop("pickup_delay_ms") < 60_000
    assert said == {
        "id": written,
        "tenant": "acme",
        "fields": {"a": "b"},
        "group": "g",
        "consumer": "me",
        "attempts": 1,
        "deadline": 4_102_444_800.0,
        "tracking_id": "t-1",
        "stream": int(written.split("-")[0]),
    }
    assert queue.stats("g")["consumers"]["me"]["pending"] == 1


def test_a_share_is_given_back_and_comes_again(command: Any, queue: ShuffleQueue) -> None:
    for number in range(4):
        queue.write("acme", {"message": str(number)})
    consume = ("queue", "consume", "mails", "--group", "g", "--block", "0")
    said = command(*consume, "--fail", "0.5", "--count", "4").splitlines()
    assert command.err == "4 messages: 2 acknowledged, 2 given back\n"
    again = command(*consume).splitlines()
    assert sorted(again) == sorted(f"{said[n]}  (attempt 2)" for n in (1, 3))
    queue.write("acme", {"message": "later"})
    command(*consume, "--fail", "1", "--delay", "1h")
    assert command(*consume) == ""
    stats = queue.stats("g")
    assert (stats["delayed"], stats["pending"], stats["returned"]) == (1, 0, 0)


def test_a_reader_who_goes_loses_nothing(queue: ShuffleQueue) -> None:
    ids = {queue.write("acme", {"message": "x" * 1000}) for _ in range(300)}
    # The reader takes one line; the pipe holds some more, and then breaks.
    consume = f"'{sys.executable}' -m workstealing queue consume mails --group g --block 0"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {consume} | head -1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    (taken, acknowledged, back) = (
        int(part.split()[0]) for part in done.stderr.replace(":", ",").split(",")
    )
    assert (back, taken) == (1, acknowledged + 1)
    left = {each.id for _ in range(4) for each in queue.read_many("g", "a test", 100)}
    assert len(left) == len(ids) - acknowledged
    assert left < ids
    assert queue.stats("g")["consumers"]["a test"]["pending"] == len(left)


def test_a_waiting_consumer_gets_what_comes(command: Any, queue: ShuffleQueue) -> None:
    def write_once_it_waits() -> None:
        wait_until(lambda: "g" in queue.groups(), "a consumer")
        queue.write("acme", {"message": "hello"})

    writer = threading.Thread(target=write_once_it_waits)
    writer.start()
    begun = time.monotonic()
    (said,) = lines(
        command(
            *("queue", "consume", "mails", "--kind", "shuffle", "--group", "g"),
            *("--count", "1", "--block", "30s", "--json"),
        )
    )
    writer.join()
    assert time.monotonic() - begun < 15
    assert said["fields"] == {"message": "hello"}


def test_block_ends_what_nothing_comes_to(command: Any, queue: ShuffleQueue) -> None:
    begun = time.monotonic()
    assert (
        command(
            *["queue", "consume", "mails", "--kind", "shuffle", "--group", "g", "--block", "100ms"]
        )
        == ""
    )
    assert 0.1 <= time.monotonic() - begun < 5
    assert queue.groups() == ["g"]


@pytest.mark.parametrize(("more", "status"), [((), 0), (("--count", "2"), 130)])
def test_ctrl_c_ends_quietly(queue: ShuffleQueue, more: tuple[str, ...], status: int) -> None:
    queue.write("acme", {"message": "hello"})
    process = spawn(
        [sys.executable, "-m", "workstealing", "queue", "consume", "mails", "--group", "g", *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"  acme  hello\n")
        # It has acknowledged that one, and sleeps until the next comes.
        wait_until(
            lambda: any("b" in each["flags"] for each in queue.client.client_list()), "a sleeper"
        )
        assert queue.length() == 0
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        end(process)
    assert (process.returncode, out, err) == (status, b"", b"1 message: 1 acknowledged\n")


def test_observe_lists_what_is_dead_and_overdue_and_says_how_much_more_there_is(
    command: Any, queue: ShuffleQueue
) -> None:
    observe = ("queue", "observe", "mails", "--once")
    queue.read("first", "c")
    for number in range(7):
        queue.write("acme", {"n": number}, deadline=1000 + number, tracking_id=f"t-{number}")
        parts = ("3", "1", str(1000 * number), "n", "1", "ws:tenant", "acme")
        grave = "".join(f"{len(part)}:{part}," for part in parts)
        queue.client.hset(queue.keys.group("first").dead, f"3:1-{number}", grave)
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


def test_observe_shows_every_group_and_changes_nothing(command: Any, queue: ShuffleQueue) -> None:
    observe = ("queue", "observe", "mails", "--once")
    assert command(*observe, "--kind", "shuffle") == (
        "ShuffleQueue mails: 0 messages, and no group has read yet\n\n"
    )
    assert queue.client.dbsize() == 0
    for number in range(12):
        queue.write(f"tenant {number % 2} \x1b[31m", {"message": str(number)})
    one, two, _ = (queue.read("first", "c") for _ in range(3))
    queue.nack(one)
    queue.nack(two, delay=3600)
    queue.read("second", "d")
    queue.client.xadd("mails", {"old": "way"})
    before = {key: queue.client.dump(key) for key in queue.client.scan_iter()}
    said = command.json(*observe)
    assert {key: queue.client.dump(key) for key in queue.client.scan_iter()} == before
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
    assert first["oldest_waiting_s"] > 0
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
    command: Any, queue: ShuffleQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_shuffle, "ROWS", 3)
    monkeypatch.setattr(queue_shuffle, "TENANTS", 2)
    for number in range(9):
        queue.write(f"tenant {number}", {"message": "x"})
    for _ in range(12):
        queue.write("loud", {"message": "x"})
    text = command("queue", "observe", "mails", "--once", "--group", "g")
    count = len(queue.stats("g")["streams"])
    assert f"the 3 longest of {count} streams" in text
    assert "tenants with the most of 10\n" in text
    table = text.partition("tenants")[0]
    streams = [int(line.split()[0]) for line in table.splitlines() if line[:1].isdigit()]
    assert len(streams) == 3
    assert streams == sorted(streams)
    assert set(streams) <= set(queue.streams_of("loud"))
    assert "\nloud " in text


def test_a_single_look_needs_no_extra_on_a_terminal_either(
    command: Any, queue: ShuffleQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.write("acme", {"message": "hello"})
    for module in ("rich", "rich.console", "rich.live"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "ShuffleQueue mails: 1 message" in command("queue", "observe", "mails", "--once")
    assert "workstealing[cli]" in command.refused("queue", "observe", "mails")


def test_observe_draws_in_place_on_a_terminal(queue: ShuffleQueue) -> None:
    for number in range(3):
        queue.write("acme \x1b[31m", {"message": str(number)})
    queue.read("g", "c")
    drawn, _ = on_terminal("queue", "observe", "mails", "--times", "2", "--interval", "10ms")
    assert b"ShuffleQueue mails: 3 messages" in drawn
    assert b"group g: 2 waiting, 1 pending" in drawn
    # The tenant's name is text: it has turned nothing red by itself.
    assert b"acme \\x1b[31m" in drawn


@pytest.mark.cluster
def test_a_cluster_is_used_like_a_server(command: Any, cluster: RedisCluster3) -> None:
    where = ("mails", "--url", cluster.url)
    arguments = ("--kind", "shuffle", "--tenant", "acme", "--deadline", "1h")
    put = command("queue", "produce", *where, "a", "b", *arguments).split()
    assert command.json("queue", "observe", *where)["length"] == 2
    said = command("queue", "consume", *where, "--group", "g", "--block", "0")
    assert sorted(line.split()[0] for line in said.splitlines()) == sorted(put)
    assert command.json("queue", "observe", *where)["groups"][0]["waiting"] == 0
    braces = command.refused("queue", "produce", "a}b", *where[1:], "x", *arguments)
    assert "a}b" in braces
