"""`workstealing queue work` as a process of its own, on real servers: each option, each end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.patience import GUARD_SECONDS
from support.processes import end, spawn
from support.servers import RedisServer, wait_until
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Recruiter
from workstealing.structures import FairQueue, ShuffleQueue
from workstealing.structures.time_shard_queue import RedisStore, TimeShardQueue

HANDLERS = """\
import asyncio
import os
import redis
from workstealing import Recruiter

# A handler that holds a message waits for long.
notes = redis.Redis.from_url(os.environ["NOTES_URL"], socket_timeout=None)


def body(message):
    # A message of a TimeShardQueue is a tuple.
    return message.message if isinstance(message, tuple) else message.fields[b"message"]


def note(message):
    notes.rpush("done", body(message))


def hold(message):
    notes.rpush("begun", body(message))
    notes.blpop("go", 0)
    note(message)


async def hold_async(message):
    notes.rpush("begun", body(message))
    while not notes.lpop("go"):
        await asyncio.sleep(0.01)
    note(message)


def fail(message):
    notes.rpush("failed", f"{body(message).decode()} {message.attempts}")
    raise ValueError("this one is poison")


def who(message):
    notes.rpush("done", f"{message.group} {message.consumer}")


number = 7
recruiter = Recruiter()


@recruiter.job(rate=0.5)
def tidy(slice):
    notes.incr("tidied")
    return 0
"""
KINDS = ("shuffle", "fair", "time")
LEASE = 1.0


class Queue:
    """A queue `q` of some kind, as a rival of the workers sees it."""

    def __init__(self, kind: str, server: RedisServer, lease: float = LEASE) -> None:
        self.kind, self.client, self.lease = kind, server.client(), lease
        self.own: Any
        if kind == "shuffle":
            self.own = ShuffleQueue(self.client, "q")
            self._recruiter = Recruiter(seconds=5.0)
            reaper = ShuffleQueueReaper(self.own, lease=lease)
            self._recruiter.install(reaper, rate=1.0)
            self._reap = reaper.name
        elif kind == "fair":
            self.own = FairQueue(self.client, "q", 3600.0)
        else:
            self.own = TimeShardQueue(RedisStore(self.client), "q", period=36_000)

    @property
    def options(self) -> tuple[str, ...]:
        """What a worker of this kind needs, to bring back dead ones' messages at once, too."""
        own = ("--drain-all",) if self.kind == "time" else ()
        return (*own, "--lease", f"{self.lease}s", "--enlist", "1")

    def put(self, *bodies: str) -> None:
        for each in bodies:
            if self.kind == "time":
                self.own.put(each)
            else:
                self.own.write("t", {"message": each})

    def take(self) -> Any:
        """Take a message as a rival would, which also looks for those of dead workers."""
        if self.kind == "time":
            return self.own.take("rival", 60.0, drain_all=True)
        if self.kind == "fair":
            return self.own.read("rival")
        self._recruiter.perform(self._reap)
        return self.own.read("consumers", "rival")

    def taken(self) -> Any:
        """Wait for a message, and take it."""
        found: list[Any] = []

        def is_there() -> bool:
            found.append(self.take())
            return found[-1] is not None

        wait_until(is_there, "a message", GUARD_SECONDS)
        return found[-1]

    def is_empty(self) -> bool:
        """Say whether no message waits, and nobody has one."""
        if self.kind == "time":
            return sum(each.total for each in self.own.stats()) == 0
        return bool(self.own.length() == 0)

    def dead(self) -> list[Any]:
        return list(self.own.dead("consumers") if self.kind == "shuffle" else self.own.dead())


class Place:
    """Starts workers on a server, whose handlers leave notes in it, or in another one."""

    def __init__(self, server: RedisServer, folder: Path, stack: ExitStack) -> None:
        self.server, self.notes, self._folder, self._stack = server, server.client(), folder, stack
        self.notes_url = server.url
        (folder / "shop.py").write_text(HANDLERS)

    def start(self, handler: str, *options: str, kind: str | None = None) -> Worker:
        """Start a worker, and wait until it works."""
        named = () if kind is None else ("--kind", kind)
        process = spawn(
            [
                *(sys.executable, "-m", "workstealing", "queue", "work", "q", f"shop:{handler}"),
                *("--url", self.server.url, "--json", *named, *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={**os.environ, "NOTES_URL": self.notes_url, "PYTHONFAULTHANDLER": "1"},
        )
        self._stack.callback(end, process)
        worker = Worker(process)
        worker.hear("working on the queue q")
        return worker

    def has(self, key: str, count: int) -> None:
        """Wait until the handlers have left so many notes."""
        wait_until(lambda: self.notes.llen(key) >= count, f"{count} of {key}", GUARD_SECONDS)

    def all(self, key: str) -> list[str]:
        return [each.decode() for each in self.notes.lrange(key, 0, -1)]


class Worker:
    """A worker's process, and what it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.logged = process, ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.logged += line

    def hear(self, text: str) -> None:
        def is_heard() -> bool:
            assert self.process.poll() is None or text in self.logged, self.logged
            return text in self.logged

        wait_until(is_heard, f"{text!r} in the log", GUARD_SECONDS)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def ended(self, status: int = 0) -> dict[str, int]:
        """Wait for its end; return how many messages ended how."""
        assert self.process.wait(GUARD_SECONDS) == status, self.logged
        self._reading.join(GUARD_SECONDS)
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.read())
        return {name: said[name] for name in said if said[name] and name not in ("queue", "kind")}


@pytest.fixture
def place(redis7: RedisServer, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        yield Place(redis7, tmp_path, stack)


@pytest.mark.parametrize("kind", KINDS)
class TestEachKind:
    def test_a_handler_that_returns_acknowledges(self, place: Place, kind: str) -> None:
        queue = Queue(kind, place.server, 60.0)
        queue.put("a", "b", "c")
        worker = place.start("note", *queue.options)
        place.has("done", 3)
        queue.put("d")
        place.has("done", 4)
        wait_until(queue.is_empty, "the last acknowledgement")
        worker.signal()
        assert worker.ended() == {"done": 4}
        assert sorted(place.all("done")) == ["a", "b", "c", "d"]

    @pytest.mark.slow
    def test_a_message_of_a_killed_worker_comes_again_after_its_lease(
        self, place: Place, kind: str
    ) -> None:
        queue = Queue(kind, place.server)
        queue.put("a")
        killed = place.start("hold", *queue.options)
        place.has("begun", 1)
        killed.signal(signal.SIGKILL)
        killed.process.wait()
        heir = place.start("note", *queue.options)
        place.has("done", 1)
        wait_until(queue.is_empty, "the acknowledgement")
        heir.signal()
        assert heir.ended() == {"done": 1}

    @pytest.mark.slow
    def test_sigterm_waits_for_a_short_handler(self, place: Place, kind: str) -> None:
        queue = Queue(kind, place.server, 60.0)
        queue.put("a", "b")
        worker = place.start("hold", "--grace", "10m", *queue.options)
        place.has("begun", 1)
        worker.signal()
        worker.hear("ending: 1 in hand")
        place.notes.rpush("go", 1)
        assert worker.ended() == {"done": 1}
        # The other one was never taken.
        assert queue.taken().attempts == 1

    @pytest.mark.slow
    def test_sigterm_gives_back_what_a_long_handler_has(self, place: Place, kind: str) -> None:
        queue = Queue(kind, place.server, 3600.0)
        queue.put("a")
        worker = place.start("hold", "--grace", "100ms", *queue.options)
        place.has("begun", 1)
        worker.signal()
        assert worker.ended() == {"given_back": 1}
        assert place.all("done") == []
        # Long before its lease would have ended.
        assert queue.taken().attempts == (1 if kind == "time" else 2)

    @pytest.mark.slow
    def test_heartbeats_keep_a_message_for_several_leases(self, place: Place, kind: str) -> None:
        queue = Queue(kind, place.server, 3.0)
        queue.put("a")
        worker = place.start("hold", *queue.options)
        place.has("begun", 1)
        until = time.monotonic() + 2.5 * queue.lease
        while time.monotonic() < until:
            assert queue.take() is None
            time.sleep(0.1)
        place.notes.rpush("go", 1)
        place.has("done", 1)
        wait_until(queue.is_empty, "the acknowledgement")
        worker.signal()
        assert worker.ended() == {"done": 1}

    @pytest.mark.slow
    def test_a_message_that_went_to_another_is_not_acknowledged(
        self, place: Place, kind: str
    ) -> None:
        queue = Queue(kind, place.server)
        queue.put("a")
        worker = place.start("hold", *queue.options)
        place.has("begun", 1)
        worker.signal(signal.SIGSTOP)
        mine = queue.taken()
        worker.signal(signal.SIGCONT)
        worker.hear("was lost while its handler runs")
        place.notes.rpush("go", 1)
        worker.hear("nothing was sent")
        worker.signal()
        assert worker.ended() == {"late": 1}
        assert queue.own.ack(mine) == 1

    @pytest.mark.slow
    def test_poison_is_set_aside_after_max_attempts(self, place: Place, kind: str) -> None:
        queue = Queue(kind, place.server, 0.3)
        queue.put("a")
        worker = place.start("fail", "--max-attempts", "3", "--backoff", "1ms", *queue.options)
        place.has("failed", 3)
        wait_until(lambda: len(queue.dead()) == 1, "the dead message", GUARD_SECONDS)
        worker.signal()
        assert worker.ended()["failed"] == 3
        assert place.all("failed") == ["a 1", "a 2", "a 3"]
        assert "attempt 3 of 3, it is set aside: ValueError: this one is poison" in worker.logged
        assert "Traceback" in worker.logged

    @pytest.mark.slow
    def test_a_long_backoff(self, place: Place, kind: str) -> None:
        """Each draws up to 10 hours, so it is as good as certain that none comes in this test."""
        queue = Queue(kind, place.server, 0.3)
        queue.put("a")
        worker = place.start("fail", "--backoff", "10h", "--backoff-cap", "1d", *queue.options)
        place.has("failed", 1)
        queue.put("b")
        place.has("failed", 2)
        worker.signal()
        assert worker.ended() == {"failed": 2}
        assert place.all("failed") == ["a 1", "b 1"]
        assert queue.take() is None

    @pytest.mark.slow
    def test_the_server_goes_and_comes_again(
        self, place: Place, start_redis: Callable[..., RedisServer], kind: str
    ) -> None:
        # The handlers leave their notes in the other one.
        place.server = start_redis(7)
        queue = Queue(kind, place.server, 60.0)
        queue.put("a")
        worker = place.start("note", "--concurrency", "3", *queue.options)
        place.has("done", 1)
        wait_until(queue.is_empty, "the acknowledgement")
        place.server.kill()
        worker.hear("the queue cannot be reached, trying on")
        place.server.restart()
        Queue(kind, place.server, 60.0).put("b")
        place.has("done", 2)
        worker.hear("the queue can be reached again")
        worker.signal()
        assert worker.ended() == {"done": 2}
        assert worker.logged.count("cannot be reached") == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("handler", ["hold", "hold_async"])
    def test_so_many_at_once(self, place: Place, kind: str, handler: str) -> None:
        queue = Queue(kind, place.server, 60.0)
        queue.put("a", "b", "c", "d")
        worker = place.start(handler, "--concurrency", "3", *queue.options)
        # Before any has ended.
        place.has("begun", 3)
        assert place.notes.llen("done") == 0
        place.notes.rpush("go", 1, 2, 3, 4)
        place.has("done", 4)
        wait_until(queue.is_empty, "the last acknowledgement")
        worker.signal()
        assert worker.ended() == {"done": 4}


def test_one_at_a_time_by_default(place: Place) -> None:
    queue = Queue("shuffle", place.server, 60.0)
    queue.put("a", "b")
    worker = place.start("hold", "--grace", "100ms", *queue.options)
    place.has("begun", 1)
    (group,) = [queue.own.stats("consumers")]
    assert (group["pending"], group["waiting"]) == (1, 1)
    worker.signal()
    assert worker.ended() == {"given_back": 1}


def test_a_backoff_is_capped(place: Place) -> None:
    queue = Queue("fair", place.server, 60.0)
    queue.put("a")
    worker = place.start("fail", "--backoff", "10h", "--backoff-cap", "1ms", *queue.options)
    place.has("failed", 5)
    worker.signal()
    assert worker.ended() == {"failed": 5}
    assert len(queue.dead()) == 1


def test_a_second_signal_ends_it_at_once(place: Place) -> None:
    queue = Queue("time", place.server, 3600.0)
    queue.put("a")
    worker = place.start("hold", "--grace", "10h", *queue.options)
    place.has("begun", 1)
    worker.signal()
    worker.hear("ending: 1 in hand")
    worker.signal()
    assert worker.process.wait(GUARD_SECONDS) == -signal.SIGTERM
    # Nobody gave it back: it comes again after its lease.
    assert sum(each.leased for each in queue.own.stats()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_signals_that_end_it(place: Place, number: int) -> None:
    worker = place.start("note", kind="fair")
    worker.signal(number)
    assert worker.ended() == {}


@pytest.mark.slow
def test_names_of_the_group_and_of_the_consumers(place: Place) -> None:
    queue = Queue("shuffle", place.server, 60.0)
    queue.put("a")
    worker = place.start("who", "--group", "mail", "--consumer", "anna", kind="shuffle")
    place.has("done", 1)
    assert place.all("done") == ["mail anna-1"]
    worker.signal()
    assert worker.ended() == {"done": 1}


def test_an_application_is_recruited_when_nothing_is_there(place: Place) -> None:
    """While its one thread holds a message, it does not enlist."""
    queue = Queue("time", place.server, 3600.0)
    queue.put("a")
    worker = place.start("hold", "--app", "shop:recruiter", "--drain-all", "--enlist", "0.5")
    place.has("begun", 1)
    assert not place.notes.exists("tidied")
    place.notes.rpush("go", 1)
    wait_until(lambda: bool(place.notes.exists("tidied")), "a recruit", GUARD_SECONDS)
    worker.signal()
    assert worker.ended() == {"done": 1}


def test_a_queue_that_is_spoilt_ends_it(place: Place) -> None:
    queue = Queue("fair", place.server, 60.0)
    worker = place.start("note", kind="fair")
    place.notes.set(queue.own.keys.meta, "foreign")
    assert worker.ended(status=1) == {}
    assert "the queue cannot be worked on: LayoutError" in worker.logged


@pytest.fixture
def shop(redis7: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """Let the handlers be found in the current folder; return the environment's server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("NOTES_URL", redis7.url)
    monkeypatch.setenv("REDIS_URL", redis7.url)
    monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (tmp_path / "shop.py").write_text(HANDLERS)
    return redis7


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("q",), "the following arguments are required: MODULE:HANDLER"),
        (("q", "shop:note"), "there is no queue 'q' in this Redis: check the name and --url"),
        (("q", "nowhere:note"), "no module 'nowhere' in"),
        (("q", "shop:nothing"), "the handler 'shop:nothing': shop has no 'nothing'"),
        (("q", "shop"), "the handler 'shop': shop has no 'handle'"),
        (("q", "shop:number", "--kind", "fair"), "7 cannot be called: give a function"),
        (("q", "shop:note", "--kind", "time"), "there is no TimeShardQueue q yet"),
        (("q", "shop:note", "--kind", "fair", "--drain-all"), "--drain-all is for a TimeShard"),
        (("q", "shop:note", "--kind", "fair", "--group", "g"), "--group is for a ShuffleQueue"),
        (("q", "shop:note", "--concurrency", "0"), "0 is too few threads"),
        (("q", "shop:note", "--kind", "fair", "--concurrency", "1001"), "1 to 1000"),
        (("q", "shop:note", "--enlist", "2"), "2 is no rate"),
        (("q", "shop:note", "--grace", "soon"), "'soon' is no duration"),
        (("q", "shop:note", "--cassandra", "cassandra://h/k"), "a worker is for a queue on Redis"),
    ],
)
def test_wrong_use_is_said_and_nothing_is_written(
    command: Any, shop: RedisServer, arguments: tuple[str, ...], expected: str
) -> None:
    assert expected in command.refused("queue", "work", *arguments)
    assert shop.client().dbsize() == 0


@pytest.mark.parametrize("kind", ["shuffle", "fair"])
def test_a_queue_of_another_namespace(place: Place, kind: str) -> None:
    of = ShuffleQueue if kind == "shuffle" else FairQueue
    of(place.notes, "q", namespace="ours").write("t", {"message": "m"})
    worker = place.start("note")
    place.has("done", 1)
    worker.signal()
    assert worker.ended() == {"done": 1}
