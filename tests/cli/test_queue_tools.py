"""`workstealing queue produce` and `consume` on real servers: counts, ends, faults, signals."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support.cassandra import KEYSPACE, CassandraServer
from support.faulty_server import FaultyServer
from support.patience import GUARD_SECONDS, PATIENT_SECONDS
from support.processes import spawn
from support.servers import RedisCluster3, RedisServer, wait_until
from support.terminals import on_terminal
from workstealing.cli import clients
from workstealing.cli.live import StopWish
from workstealing.cli.queue.course import Course, LiveLine, Weighted, drawn
from workstealing.cli.queue.produce import LONGEST_LINE, Lines
from workstealing.errors import UnwritableError
from workstealing.structures import ShuffleQueue
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue

PRODUCE, CONSUME = ("queue", "produce"), ("queue", "consume")
AT_ONCE = ("--per-second", "max")
ALL = ("--until-empty", "--poll", "10ms")


@pytest.fixture
def at(redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """A server that the environment names."""
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    # A busy machine is no silent server.
    monkeypatch.setattr(clients, "TIMEOUT_SECONDS", PATIENT_SECONDS)
    return redis7


def rests(server: RedisServer, **options: Any) -> TimeShardQueue:
    """Return a queue `q` that stays in one turn for as long as a test takes."""
    return TimeShardQueue(RedisStore(server.client()), "q", **{"period": 36_000, **options})


class TestWrongUse:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ((*PRODUCE,), "the following arguments are required: NAME;"),
            ((*PRODUCE, "q", "--per-second", "0"), "0 is no frequency: expected a number above 0"),
            ((*PRODUCE, "q", "--per-second", "nan"), "is not finite"),
            ((*PRODUCE, "q", "--count", "0"), "0 is too few messages"),
            ((*PRODUCE, "q", "--due-in", "60..5"), "has its bounds in the wrong order"),
            ((*PRODUCE, "q", "--due-in", "soon"), "'soon' is no duration"),
            ((*PRODUCE, "q", "--due-in", "1", "--priority", "1"), "not allowed with argument"),
            ((*PRODUCE, "q", "--priority=-1=2"), "'-1=2' is no priority"),
            ((*PRODUCE, "q", "--priority", "101"), "'101' is no priority"),
            ((*PRODUCE, "q", "--tenant", "a=0"), "'a=0' is no share"),
            ((*PRODUCE, "q", "--tenant", "=3"), "'=3' is no share"),
            ((*PRODUCE, "q", "--tenant", "a", "--tenant", "a=2"), "--tenant a was given twice"),
            (
                (*PRODUCE, "q", "--priority", "1", "--priority", "01"),
                "--priority 1 was given twice",
            ),
            ((*PRODUCE, "q", "--time-shards", "3"), "3 is too few time shards"),
            ((*PRODUCE, "q", "--lines", "--message", "x"), "not allowed with argument"),
            ((*PRODUCE, "q"), "there is no queue 'q' in this Redis yet: give --kind shuffle or"),
            ((*PRODUCE, "q", "--kind", "shuffle", "--due-in", "1"), "--due-in is for a TimeShard"),
            ((*PRODUCE, "q", "--kind", "shuffle", "--period", "1"), "--period is for a TimeShard"),
            ((*PRODUCE, "q", "--kind", "time", "--tenant", "a"), "--tenant is for a ShuffleQueue"),
            ((*PRODUCE, "q", "--kind", "time", "--create-table"), "--create-table is for --cassa"),
            ((*PRODUCE, "q", "--kind", "time", "--time-shards", "9999"), "too many: give at most"),
            ((*CONSUME, "q"), "there is no queue 'q' in this Redis: check the name and --url"),
            ((*CONSUME, "q", "--kind", "time"), "there is no TimeShardQueue q yet"),
            ((*CONSUME, "q", "--fail", "1.1"), "1.1 is no portion: expected 0 to 1"),
            ((*CONSUME, "q", "--fail", "0.6", "--lapse", "0.6"), "together are more than 1"),
            ((*CONSUME, "q", "--each", "--json"), "leave one of them out"),
            ((*CONSUME, "q", "--kind", "shuffle", "--drain-all"), "--drain-all is for a TimeShard"),
            (
                (*CONSUME, "q", "--kind", "shuffle", "--lease", "1"),
                "the lease of a ShuffleQueue is",
            ),
            ((*CONSUME, "q", "--kind", "time", "--group", "g"), "--group is for a ShuffleQueue"),
        ],
    )
    def test_it_is_said_and_nothing_is_written(
        self, command: Any, at: RedisServer, arguments: tuple[str, ...], expected: str
    ) -> None:
        assert expected in command.refused(*arguments)
        assert at.client().dbsize() == 0

    def test_a_queue_keeps_its_own_turns(self, command: Any, at: RedisServer) -> None:
        rests(at, shards=5).open()
        said = command.refused(*PRODUCE, "q", "--period", "1s")
        assert "give --time-shards 5 and --period 36000, or use another name" in said
        assert "has 5 time shards" in command.refused(*PRODUCE, "q", "--time-shards", "6")
        assert command.json(*PRODUCE, "q", "--count", "1", "--period", "10h")["put"] == 1
        assert sum(each.waiting for each in rests(at, shards=5).stats()) == 1


class TestProduce:
    def test_tenants_by_their_shares(self, command: Any, at: RedisServer) -> None:
        shares = ("--tenant", "loud=9", "--tenant", "quiet")
        said = command.json(
            *(*PRODUCE, "q", "--kind", "shuffle", "--count", "200", "--seed", "7"),
            *(*AT_ONCE, *shares, "--message", '{"n": {number}, "of": "{tenant}"}'),
        )
        assert (said["kind"], said["queue"], said["put"]) == ("shuffle", "q", 200)
        assert (said["refused"], said["unknown"], said["ended_by"]) == (0, 0, "count")
        chance = random.Random(7)
        drawn_tenants = [
            drawn([Weighted("loud", 9), Weighted("quiet", 1)], chance) for _ in range(200)
        ]
        assert said["tenants"] == {each: drawn_tenants.count(each) for each in ("loud", "quiet")}
        assert said["tenants"]["loud"] > 150
        found = ShuffleQueue(at.client(), "q").read_many("g", "c", 200)
        bodies = sorted(
            (json.loads(each.fields[b"message"]) for each in found), key=lambda b: b["n"]
        )
        assert [each["n"] for each in bodies] == list(range(1, 201))
        assert [each["of"] for each in bodies] == drawn_tenants

    def test_a_higher_priority_of_a_turn_is_taken_first(
        self, command: Any, at: RedisServer
    ) -> None:
        shares = ("--priority", "0=2", "--priority", "1", "--priority", "5")
        said = command.json(
            *(*PRODUCE, "q", "--kind", "time", "--period", "10h", "--count", "60", *AT_ONCE),
            *(*shares, "--seed", "1", "--message", "{priority} {number}"),
        )
        assert set(said["priorities"]) == {"0", "1", "5"}
        taken = rests(at).take_many("c", 100, drain_all=True)
        order = [tuple(map(int, each.message.split())) for each in taken]
        assert len(order) == 60
        assert order == sorted(order, key=lambda each: (-each[0], each[1]))

    def test_due_times_are_spread(self, command: Any, at: RedisServer) -> None:
        before = time.time()
        produce = (*PRODUCE, "q", "--kind", "time", "--period", "10h", *AT_ONCE, "--count", "50")
        command.json(*produce, "--due-in", "1h..2h")
        command.json(*produce, "--due-in", "0")
        queue = rests(at)
        assert sum(each.due for each in queue.stats()) == 50
        index = next(key for key in at.client().scan_iter("*waiting*q"))
        due = [score / 1000 for _, score in at.client().zrange(index, 0, -1, withscores=True)]
        later = [each - before for each in due if each > before + 1800]
        assert len(later) == 50
        assert 3600 <= min(later) < max(later) <= 7200 + GUARD_SECONDS

    def test_lines_of_stdin(self, at: RedisServer) -> None:
        rests(at).open()
        tool = spawn(
            [sys.executable, "-m", "workstealing", *PRODUCE, "q", "--lines", "--json"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        out, _ = tool.communicate(b"one\n\n\xff two\r\nlast", GUARD_SECONDS)
        said = json.loads(out)
        assert (tool.returncode, said["put"], said["ended_by"]) == (0, 4, "lines")
        bodies = [each.message for each in rests(at).take_many("c", 9, drain_all=True)]
        assert bodies == [b"one", b"", b"\xff two\r", b"last"]

    def test_a_line_without_an_end_is_not_kept_for_ever(self) -> None:
        read, write = os.pipe()
        lines = Lines(Course(StopWish(), per_second=None, count=None, seconds=None), read)
        child = spawn(["head", "-c", str(3 * LONGEST_LINE), "/dev/zero"], stdout=write)
        os.close(write)
        with pytest.raises(ValueError, match="line 1 of stdin is too long"):
            lines.next()
        assert len(lines._kept) < 2 * LONGEST_LINE
        os.close(read)
        child.wait(GUARD_SECONDS)

    def test_a_full_server_refuses_and_the_others_go_on(
        self, command: Any, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7)
        rests(server).put("x")
        server.client().config_set("maxmemory", "1")
        said = command.json(
            *(*PRODUCE, "q", "--url", server.url, "--count", "3", *AT_ONCE), status=1
        )
        assert (said["put"], said["refused"], said["unknown"]) == (0, 3, 0)
        assert "OutOfMemory" in said["trouble"]
        server.client().config_set("maxmemory", "0")
        assert sum(each.total for each in rests(server).stats()) == 1

    @pytest.mark.parametrize("kind", ["time", "shuffle"])
    @pytest.mark.parametrize("fault", ["cut", "half", "silent"])
    def test_a_cut_off_reply_is_one_of_which_nobody_knows(
        self,
        command: Any,
        at: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
        kind: str,
        fault: str,
    ) -> None:
        with FaultyServer(at.port) as door:
            produce = (
                *(*PRODUCE, "q", "--kind", kind, "--count", "3", *AT_ONCE),
                *("--url", f"redis://127.0.0.1:{door.port}/0?protocol=2"),
            )
            command.json(*produce)
            door.reset()
            assert command.json(*produce)["put"] == 3
            last = len(door.seen)
            door.reset()
            door.fail(last, fault)
            if fault == "silent":
                monkeypatch.setattr(clients, "TIMEOUT_SECONDS", 4.0)
            said = command.json(*produce, status=1)
            door.settle()
        assert (said["put"], said["refused"], said["unknown"]) == (2, 0, 1)
        assert said["trouble"]
        text = command(*PRODUCE, "q", "--kind", kind, "--count", "1")
        assert text.startswith("put 1 message into ")
        held = (
            sum(each.total for each in TimeShardQueue(RedisStore(at.client()), "q").stats())
            if kind == "time"
            else ShuffleQueue(at.client(), "q").length()
        )
        # It was put nevertheless, but for the server that said nothing because it heard nothing.
        assert held == (9 if fault == "silent" else 10)

    def test_nobody_listens_so_nothing_was_put(
        self, command: Any, start_redis: Callable[..., RedisServer], monkeypatch: Any
    ) -> None:
        server = start_redis(7)
        rests(server).open()
        put, puts = TimeShardQueue.put, []

        def stop_after_the_first(self: TimeShardQueue, *arguments: Any) -> Any:
            if len(puts) == 1:
                server.stop()
            puts.append(arguments)
            return put(self, *arguments)

        monkeypatch.setattr(TimeShardQueue, "put", stop_after_the_first)
        said = command.json(
            *(*PRODUCE, "q", "--url", server.url, "--count", "4", *AT_ONCE), status=1
        )
        # The second one may have met the server's end; of the others the system says so.
        assert said["put"] == 1
        assert said["refused"] >= 2
        assert said["refused"] + said["unknown"] == 3

    def test_it_shows_one_line_on_a_terminal(self, at: RedisServer) -> None:
        rests(at).open()
        drawn_line, _ = on_terminal(*PRODUCE, "q", "--count", "3", *AT_ONCE, columns=60)
        text = drawn_line.decode()
        assert text.startswith("\r\x1b[Kput 1 message into TimeShardQueue q in ")
        assert re.search(r"\r\x1b\[Kput 3 messages into .* a second\r\n$", text)


class TestConsume:
    def test_all_of_a_shuffle_queue(self, command: Any, at: RedisServer) -> None:
        tenants = ("--tenant", "a", "--tenant", "b")
        produce = (*PRODUCE, "q", "--kind", "shuffle", "--count", "80", *AT_ONCE, *tenants)
        put = command.json(*produce)
        said = command.json(*CONSUME, "q", *ALL, "--fail", "0.3", "--lapse", "0.2", "--seed", "3")
        assert said["ended_by"] == "empty"
        assert said["taken"] == said["done"] + said["given_back"] + said["lapsed"]
        assert said["done"] + said["lapsed"] == 80
        assert min(said["given_back"], said["lapsed"]) > 0
        assert said["late"] == said["refused"] == said["unknown"] == 0
        assert set(said["tenants"]) == set(put["tenants"])
        stats = ShuffleQueue(at.client(), "q").stats("consumers")
        assert (stats["pending"], stats["waiting"]) == (said["lapsed"], 0)
        back = command.json(
            *(*CONSUME, "q", *ALL, "--enlist", "1", "--lease", "1ms", "--consumer", "another")
        )
        assert back["done"] == back["brought_back_or_cleared"] == said["lapsed"]
        assert ShuffleQueue(at.client(), "q").length() == 0

    def test_all_of_a_time_shard_queue(self, command: Any, at: RedisServer) -> None:
        queue = rests(at)
        for number in range(40):
            queue.put(str(number))
        said = command.json(
            *(*CONSUME, "q", *ALL, "--drain-all", "--lease", "100ms"),
            *("--fail", "0.3", "--lapse", "0.2", "--seed", "4"),
        )
        assert said["ended_by"] == "empty"
        dead = sum(each.dead for each in queue.stats())
        assert said["done"] + dead == 40
        assert said["taken"] == said["done"] + said["given_back"] + said["lapsed"]
        assert min(said["given_back"], said["lapsed"]) > 0
        assert sum(each.total for each in queue.stats()) == 0

    def test_it_waits_for_what_is_due_later(self, command: Any, at: RedisServer) -> None:
        rests(at).put("x", due=timedelta(milliseconds=300))
        said = command.json(*CONSUME, "q", *ALL, "--drain-all")
        assert (said["done"], said["ended_by"]) == (1, "empty")

    def test_without_drain_all_it_takes_what_has_its_turn(
        self, command: Any, at: RedisServer
    ) -> None:
        rests(at).put("x")
        said = command.json(*CONSUME, "q", "--seconds", "200ms", "--poll", "10ms")
        assert (said["taken"], said["ended_by"]) == (0, "seconds")
        assert said["late_by_seconds"] == {"mean": 0.0, "worst": 0.0}

    def test_a_line_for_each(self, command: Any, at: RedisServer) -> None:
        queue = ShuffleQueue(at.client(), "q")
        first = queue.write("acme \x1b[31m", {"message": "hello \x1b" + 99 * "x"})
        queue.write("acme", {"a": "b", "c": "d"})
        text = command(*CONSUME, "q", "--each", "--count", "1")
        one, total = text.splitlines()
        assert one.startswith(f"{first}  done  late by ")
        assert one.endswith(f"  acme \\x1b[31m  hello \\x1b{50 * 'x'}...")
        assert total.startswith("took 1 message of ShuffleQueue q in ")
        text = command(*CONSUME, "q", "--each", "--count", "1", "--fail", "1")
        assert "  given back  " in text
        assert 'acme  {"a": "b", "c": "d"}' in text

    def test_a_message_that_outlasts_its_lease_is_late(
        self, command: Any, at: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = rests(at)
        queue.put("x")
        ack = TimeShardQueue.ack

        def ack_second(self: TimeShardQueue, *messages: Any) -> int:
            ack(self, *messages)
            return ack(self, *messages)

        monkeypatch.setattr(TimeShardQueue, "ack", ack_second)
        text = command(
            *(*CONSUME, "q", "--drain-all", "--count", "1", "--lease", "1ms"),
            *("--work-seconds", "0..2ms"),
        )
        assert "1 done too late, another consumer had it" in text
        assert "a piece of work may last longer than the lease of 1 ms" in command.err

    @pytest.mark.parametrize("what", ["ack", "release"])
    def test_a_cut_off_end_is_one_of_which_nobody_knows(
        self, command: Any, at: RedisServer, what: str
    ) -> None:
        queue = rests(at)
        fails = ("--fail", "1") if what == "release" else ()
        with FaultyServer(at.port) as door:
            consume = (
                *(*CONSUME, "q", "--drain-all", "--count", "1", *fails),
                *("--url", f"redis://127.0.0.1:{door.port}/0?protocol=2"),
            )
            queue.put("x")
            command.json(*consume)
            door.reset()
            queue.put("x")
            command.json(*consume)
            last = len(door.seen)
            door.reset()
            queue.put("x")
            door.fail(last, "cut")
            said = command.json(*consume, status=1)
        assert (said["taken"], said["unknown"], said["done"], said["given_back"]) == (1, 1, 0, 0)

    def test_a_fault_of_a_take_is_said_and_it_goes_on(
        self, command: Any, at: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = rests(at)
        queue.put("x")
        take, takes = TimeShardQueue.take, []

        def fail_first(self: TimeShardQueue, *arguments: Any, **options: Any) -> Any:
            takes.append(arguments)
            if len(takes) == 1:
                raise ConnectionError("cut\x1b[31m")
            return take(self, *arguments, **options)

        monkeypatch.setattr(TimeShardQueue, "take", fail_first)
        said = command.json(*CONSUME, "q", *ALL, "--drain-all")
        assert (said["done"], said["trouble"]) == (1, None)
        takes.clear()
        said = command.json(*CONSUME, "q", "--seconds", "1ms", status=1)
        assert said["trouble"] == "ConnectionError: cut\\x1b[31m"

    @pytest.mark.slow
    def test_a_reader_who_goes_leaves_no_message_leased(self, at: RedisServer) -> None:
        queue = rests(at)
        for number in range(500):
            queue.put(str(number))
        source = "import sys; from workstealing.cli import main; sys.exit(main())"
        tool = f"{sys.executable} -c '{source}' queue consume q --drain-all --each --count 500"
        done = subprocess.run(
            ["/bin/sh", "-c", f"{tool} | head -1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=GUARD_SECONDS,
        )
        assert (done.stdout.count("\n"), done.stderr) == (1, "")
        found = queue.stats()
        assert sum(each.leased for each in found) == sum(each.consumed for each in found) > 0

    def test_a_terminal_that_takes_no_more_leaves_no_message_leased(
        self, command: Any, at: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = rests(at)
        queue.put("x")

        def show(*_: Any) -> None:
            raise UnwritableError("stdout cannot be written to")

        monkeypatch.setattr(LiveLine, "show", show)
        command(*CONSUME, "q", "--drain-all", "--work-seconds", "50s", status=1)
        assert sum(each.leased for each in queue.stats()) == 0
        (again,) = queue.take_many("c", 9, drain_all=True)
        assert again.attempts == 1

    @pytest.mark.cluster
    def test_on_a_cluster(self, command: Any, cluster: RedisCluster3) -> None:
        where = ("--url", cluster.url)
        for kind in ("shuffle", "time"):
            name = (kind, "--kind", kind, *where)
            assert command.json(*PRODUCE, *name, "--count", "5", *AT_ONCE)["put"] == 5
            more = ("--drain-all",) if kind == "time" else ()
            assert command.json(*CONSUME, *name, *ALL, *more)["done"] == 5


class TestSignals:
    """Tools that are processes of their own, at work when a signal comes."""

    def start(self, *arguments: str) -> Any:
        return spawn(
            [sys.executable, "-m", "workstealing", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, tool: Any, number: int) -> dict[str, Any]:
        tool.send_signal(number)
        out, err = tool.communicate(timeout=GUARD_SECONDS)
        assert (tool.returncode, err) == (0, ""), (out, err)
        said = json.loads(out)
        assert said["ended_by"] == "signal"
        return dict(said)

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_the_message_in_hand_is_given_back(self, at: RedisServer, number: int) -> None:
        queue = rests(at)
        queue.put("x")
        work = ("--work-seconds", "50s", "--drain-all", "--json")
        tool = self.start(*CONSUME, "q", *work)
        wait_until(lambda: sum(each.leased for each in queue.stats()), "a message in hand")
        said = self.ended(tool, number)
        assert (said["taken"], said["given_back"], said["done"]) == (1, 1, 0)
        (again,) = queue.take_many("c", 9, drain_all=True)
        assert (again.message, again.attempts) == (b"x", 1)

    def test_of_a_shuffle_queue(self, at: RedisServer) -> None:
        queue = ShuffleQueue(at.client(), "q")
        queue.write("acme", {"message": "x"})
        tool = self.start(*CONSUME, "q", "--work-seconds", "50s", "--json")
        wait_until(lambda: queue.groups() and queue.stats("consumers")["pending"], "a message")
        assert self.ended(tool, signal.SIGINT)["given_back"] == 1
        stats = queue.stats("consumers")
        assert (stats["pending"], stats["returned"]) == (0, 1)

    @pytest.mark.slow
    def test_one_that_waits_for_messages(self, at: RedisServer) -> None:
        queue = ShuffleQueue(at.client(), "q")
        queue.write("acme", {"message": "x"})
        tool = self.start(*CONSUME, "q", "--json", "--poll", "1h")
        wait_until(lambda: queue.length() == 0, "the message to be done")
        assert self.ended(tool, signal.SIGTERM)["done"] == 1

    @pytest.mark.slow
    def test_a_producer_between_two_messages(self, at: RedisServer) -> None:
        queue = rests(at)
        queue.open()
        tool = self.start(*PRODUCE, "q", "--per-second", "0.001", "--json")
        wait_until(lambda: sum(each.total for each in queue.stats()), "the first message")
        assert self.ended(tool, signal.SIGINT)["put"] == 1

    @pytest.mark.slow
    def test_a_producer_that_waits_for_a_line(self, at: RedisServer) -> None:
        queue = rests(at)
        queue.open()
        tool = self.start(*PRODUCE, "q", "--lines", "--json")
        tool.stdin.write("one\n")
        tool.stdin.flush()
        wait_until(lambda: sum(each.total for each in queue.stats()), "the first line")
        tool.send_signal(signal.SIGINT)
        tool.wait(GUARD_SECONDS)
        out, err = tool.communicate()
        assert (json.loads(out)["put"], json.loads(out)["ended_by"], err) == (1, "signal", "")

    @pytest.mark.slow
    def test_killed_producers_and_consumers_lose_nothing(self, at: RedisServer) -> None:
        """SIGTERM at any moment: each message was done once, or is still there."""
        queue = rests(at)
        for number in range(3000):
            queue.put(str(number))
        consume = (*CONSUME, "q", "--drain-all", "--fail", "0.2", "--json")
        done = 0
        chance = random.Random(5)
        for _ in range(8):
            tool = self.start(*consume)
            before = sum(each.consumed for each in queue.stats())
            wait_until(
                lambda before=before: sum(each.consumed for each in queue.stats()) > before, "work"
            )
            time.sleep(chance.uniform(0, 0.02))
            done += self.ended(tool, signal.SIGTERM)["done"]
        found = queue.stats()
        assert sum(each.consumed for each in found) == done
        assert sum(each.leased for each in found) == done, "nothing else is leased"
        assert sum(each.total for each in found) == 3000 - done


class SteppedClock:
    """A clock that a test sets; a wish that lets it go on instead of waiting."""

    def __init__(self) -> None:
        self.now = 100.0
        self.is_wanted = False
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def is_set(self) -> bool:
        return self.is_wanted

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return self.is_wanted


def course(clock: SteppedClock, **options: Any) -> Course:
    settings = {"per_second": 4.0, "count": None, "seconds": None, **options}
    return Course(clock, clock=clock, **settings)  # type: ignore[arg-type]


class TestCourse:
    def test_acts_have_their_turns(self) -> None:
        clock = SteppedClock()
        led = course(clock, count=4)
        begun = []
        while led.next():
            begun.append(clock.now)
            clock.now += 0.05
            led.note_act()
        assert begun == pytest.approx([100.0, 100.25, 100.5, 100.75])
        assert led.ended_by == "count"

    def test_a_pause_is_caught_up_by_a_seconds_worth(self) -> None:
        clock = SteppedClock()
        led = course(clock)
        led.next()
        clock.now += 60
        led.note_act()
        clock.waits.clear()
        burst = 0
        while led.next() and not clock.waits:
            led.note_act()
            burst += 1
        assert burst == 4

    def test_it_ends_in_the_middle_of_a_wait(self) -> None:
        clock = SteppedClock()
        led = course(clock, per_second=0.1, seconds=3.0)
        led.next()
        led.note_act()
        assert not led.next()
        assert (led.ended_by, clock.now) == ("seconds", 103.0)

    def test_the_first_end_counts(self) -> None:
        clock = SteppedClock()
        led = course(clock)
        clock.is_wanted = True
        assert not led.next()
        led.end("lines")
        assert led.ended_by == "signal"


@pytest.mark.cassandra
class TestCassandra:
    def test_put_and_taken(self, cassandra: CassandraServer, command: Any) -> None:
        keyspace = f"cassandra://127.0.0.1:{cassandra.node.cql}/{KEYSPACE}"
        where = ("--cassandra", f"{keyspace}/tried")
        said = command.refused(*PRODUCE, "q", *where)
        assert f"{KEYSPACE}.tried cannot be read" in said
        assert "--create-table creates a missing one" in said
        created = ("--create-table", "--period", "10h", *AT_ONCE)
        try:
            said = command.json(*PRODUCE, "q", *where, *created, "--count", "12", "--priority", "1")
            assert (said["put"], said["unknown"], said["kind"]) == (12, 0, "time")
            assert "has 6 time shards" in command.refused(*PRODUCE, "q", *where, "--period", "1s")
            assert "there is no queue 'other' in" in command.refused(*CONSUME, "other", *where)
            said = command.json(
                *(*CONSUME, "q", *where, *ALL, "--drain-all", "--lease", "500ms"),
                *("--fail", "0.3", "--lapse", "0.2", "--seed", "4", "--enlist", "0.5"),
            )
            assert (said["done"], said["ended_by"]) == (12, "empty")
            assert said["taken"] == 12 + said["given_back"] + said["lapsed"] > 12
            assert command.json("queue", "observe", "q", *where, "--once")["total"] == 0
        finally:
            cassandra.session.execute(f"DROP TABLE IF EXISTS {KEYSPACE}.tried", timeout=60)

    def test_a_signal_gives_back(self, cassandra: CassandraServer) -> None:
        queue: TimeShardQueue = TimeShardQueue(cassandra.store(), "q", period=36_000)
        queue.put("x")
        where = f"cassandra://127.0.0.1:{cassandra.node.cql}/{KEYSPACE}/{cassandra.table}"
        signals = TestSignals()
        tool = signals.start(
            *(*CONSUME, "q", "--cassandra", where, "--work-seconds", "50s", "--drain-all", "--json")
        )
        wait_until(lambda: sum(each.leased for each in queue.stats()), "a message in hand")
        assert signals.ended(tool, signal.SIGTERM)["given_back"] == 1
        assert sum(each.leased for each in queue.stats()) == 0
