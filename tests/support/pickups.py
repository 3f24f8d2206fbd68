"""Evidence of lost wake-ups: which message of a shuffle queue waited while a reader slept.

Readers sleep in one command, XREAD BLOCK (XREADGROUP for the published queue). Here they send TIME
in the same packet before it, so the server itself says from when it slept on, and the id
of the entry that ended the sleep says until when. A message waits from its own id's millisecond
until that plus its pickup delay. All of these are the server's clock: a process that the machine
did not let run cannot look like a reader that slept.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import pytest
import redis

from workstealing.store.connection import OneAttempt

TOLERANCE_MS = 2.0
"""Ids are whole milliseconds, and a script's clock stands still while it runs."""
_FAILS_AFTER_S = 60.0


class Wait(NamedTuple):
    """A span on the server's clock, in milliseconds, of a reader that slept or a message."""

    who: str
    start: float
    end: float


class Recorder:
    """What is written down of this process's sleeps, and how they are interfered with.

    Attributes: `sleeps`; `before`: called before a blocking read is sent; `from_now`: whether a
    sleep is spoilt to begin at the newest entry, as in a queue that does not remember where it has
    looked.
    """

    def __init__(self, *, from_now: bool = False) -> None:
        self.sleeps: list[Wait] = []
        self.before: Callable[[], None] | None = None
        self.from_now = from_now

    def prepare(self, command: Sequence[Any]) -> list[Sequence[Any]]:
        """Return what is sent in one packet in place of a blocking read."""
        if self.before is not None:
            self.before()
        if self.from_now:
            keys = (len(command) - _words(command).index("STREAMS") - 1) // 2
            command = (*command[:-keys], *["$"] * keys)
        return [("TIME",), command]

    def note(self, command: Sequence[Any], clock: Sequence[Any], reply: Any) -> None:
        """Write down from when until when the reader slept, if it did."""
        start = int(clock[0]) * 1_000 + int(clock[1]) / 1_000
        if reply:
            streams = reply.items() if isinstance(reply, dict) else reply
            end = min(_milliseconds(entries[0][0]) for _, entries in streams)
        else:
            end = start + float(command[_words(command).index("BLOCK") + 1])
        if end > start:
            # Otherwise there was something to read at once: it did not sleep.
            self.sleeps.append(Wait(threading.current_thread().name, start, end))


def blocks(command: Sequence[Any]) -> bool:
    """Say whether a command is a blocking read."""
    words = _words(command)
    return words[0] in ("XREAD", "XREADGROUP") and "BLOCK" in words


def _words(command: Sequence[Any]) -> list[Any]:
    # redis-py itself gives some of them as bytes.
    return [word.decode() if isinstance(word, bytes) else word for word in command]


@contextmanager
def recorded(*, from_now: bool = False) -> Iterator[Recorder]:
    """Record the sleeps of this process's shuffle queues, and of `recording_client`s."""
    recorder = Recorder(from_now=from_now)
    call = OneAttempt.call

    def recording_call(connection: OneAttempt, commands: Sequence[Any], budget: Any) -> list[Any]:
        if not commands or not blocks(commands[0]):
            return call(connection, commands, budget)
        (command,) = commands
        clock, reply = call(connection, recorder.prepare(command), budget)
        if not isinstance(reply, Exception):
            recorder.note(command, clock, reply)
        return [reply]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneAttempt, "call", recording_call)
        patch.setattr(_RecordingConnection, "recorder", recorder)
        yield recorder


class _RecordingConnection(redis.Connection):
    """A plain connection whose blocking reads are recorded."""

    recorder: ClassVar[Recorder] = Recorder()
    _blocking: Sequence[Any] | None = None

    def send_command(self, *args: Any, **kwargs: Any) -> None:
        if not blocks(args):
            super().send_command(*args, **kwargs)
            return
        self._blocking = args
        self.send_packed_command(self.pack_commands(self.recorder.prepare(args)))

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        command, self._blocking = self._blocking, None
        if command is None:
            return super().read_response(*args, **kwargs)
        clock = super().read_response(*args, **kwargs)
        reply = super().read_response(*args, **kwargs)
        self.recorder.note(command, clock, reply)
        return reply


def _milliseconds(entry: bytes | str) -> float:
    return float(entry.decode().split("-")[0] if isinstance(entry, bytes) else entry.split("-")[0])


def slept_through(
    messages: Iterable[Wait], sleeps: Iterable[Wait], tolerance_ms: float = TOLERANCE_MS
) -> list[tuple[Wait, Wait]]:
    """Return each message that waited while a reader slept, with such a sleep.

    They must have been at the same time for more than the tolerance.
    """
    # Two spans overlap by more than t if each is longer than t, and each begins more than t before
    # the other's end. So the sleep that ends last, of those that begin early enough, decides.
    asleep = sorted((s for s in sleeps if s.end - s.start > tolerance_ms), key=lambda s: s.start)
    starts = [sleep.start for sleep in asleep]
    latest = list(accumulate(asleep, lambda a, b: a if a.end >= b.end else b))
    found = []
    for message in messages:
        before = bisect_left(starts, message.end - tolerance_ms)
        if not before or message.end - message.start <= tolerance_ms:
            continue
        sleep = latest[before - 1]
        if sleep.end - message.start > tolerance_ms:
            found.append((message, sleep))
    return found


class Evidence(NamedTuple):
    """What the readers and writers of one run of `traffic` have written down."""

    written: list[str]
    messages: list[Wait]
    sleeps: list[Wait]
    seconds: float

    def slept_through(self) -> list[tuple[Wait, Wait]]:
        """Return each message that waited while a reader slept, with such a sleep."""
        return slept_through(self.messages, self.sleeps)

    def delays(self) -> list[float]:
        """Return the pickup delays in milliseconds, lowest first."""
        return sorted(message.end - message.start for message in self.messages)


def recording_client(port: int, **options: Any) -> redis.Redis:
    """Return a plain client whose blocking reads are recorded."""
    pool: Any = redis.ConnectionPool(
        connection_class=_RecordingConnection, host="127.0.0.1", port=port, **options
    )
    return redis.Redis(connection_pool=pool)


def traffic(
    port: int,
    make_queue: Callable[[Any], Any],
    *,
    messages: int,
    readers: int = 16,
    processes: int = 4,
    writers: int = 2,
    tenants: int = 40,
    pause_s: float = 0.003,
    from_now: bool = False,
    seed: int = 1,
) -> Evidence:
    """Let writers write in bursts at random, and readers read one by one; return what they saw.

    Arguments: the server's port; what makes a queue from a client; how many messages, readers (the
    threads of so many processes) and writers (a process each); of how many tenants; the mean pause
    of a writer between two bursts, seconds; whether to spoil the readers' sleep. Raises:
    AssertionError when a process failed or 60 s + 5 ms a message were not enough.
    """
    context = multiprocessing.get_context("fork")
    read = context.Value("q", 0)
    results = context.SimpleQueue()
    limit = time.monotonic() + _FAILS_AFTER_S + messages / 200
    shares = [messages // writers + (number < messages % writers) for number in range(writers)]

    def process(work: Callable[..., Any], *args: Any) -> None:
        try:
            with recorded(from_now=from_now) as recorder:
                results.put((work.__name__, work(recorder, *args)))
        except BaseException:  # noqa: BLE001 - the parent says it
            results.put(("failed", traceback.format_exc()))
        finally:
            os._exit(0)

    def writing(_: Recorder, number: int) -> list[str]:
        rng = random.Random(seed * 1_000 + number)
        queue = make_queue(redis.Redis(host="127.0.0.1", port=port))
        ids: list[str] = []
        while len(ids) < shares[number]:
            for _ in range(min(rng.choice((1, 1, 1, 2, 5, 20)), shares[number] - len(ids))):
                ids.append(queue.write(f"tenant-{rng.randrange(tenants)}", {"n": len(ids)}))
            time.sleep(rng.expovariate(1 / pause_s))
        return ids

    def reading(recorder: Recorder, number: int) -> tuple[list[Wait], list[Wait]]:
        taken: list[Wait] = []
        problems: list[BaseException] = []

        def run(name: str) -> None:
            try:
                queue = make_queue(redis.Redis(host="127.0.0.1", port=port))
                while read.value < messages and time.monotonic() < limit:
                    message = queue.read("readers", name, block=1)
                    if message is None:
                        continue
                    with read.get_lock():
                        read.value += 1
                    start = _milliseconds(message.id.split("-", 1)[1])
                    taken.append(Wait(message.id, start, start + message.pickup_delay_ms))
                    assert queue.ack(message) == 1
            except BaseException as error:  # noqa: BLE001 - it is raised below
                problems.append(error)

        names = [f"reader-{number}-{i}" for i in range(readers // processes)]
        threads = [threading.Thread(target=run, args=(name,), name=name) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return taken, recorder.sleeps

    make_queue(redis.Redis(host="127.0.0.1", port=port)).read("readers", "first")
    started = time.monotonic()
    works = [(reading, number) for number in range(processes)]
    works += [(writing, number) for number in range(writers)]  # type: ignore[list-item]
    children = [context.Process(target=process, args=work, daemon=True) for work in works]
    for child in children:
        child.start()
    found: dict[str, list[Any]] = {"reading": [], "writing": [], "failed": []}
    for _ in children:
        kind, result = results.get()
        found[kind].append(result)
    seconds = time.monotonic() - started
    for child in children:
        with suppress(ValueError):
            child.join()
    assert not found["failed"], "\n".join(found["failed"])
    return Evidence(
        [written for ids in found["writing"] for written in ids],
        [wait for taken, _ in found["reading"] for wait in taken],
        [sleep for _, sleeps in found["reading"] for sleep in sleeps],
        seconds,
    )
