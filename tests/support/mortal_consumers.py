"""Consumers of a fair queue that are killed by SIGKILL at random moments, and say what they do.

The consumers are forked from one process that is warm: it has imported and used what they need. It
writes the messages itself, and nobody kills it. Each process notes in one file, by one write to its
end, what it is about to do, and what it was told. So a note is there, or is not, whatever kills its
process; see `fair_histories`.

    python -m support.mortal_consumers FOLDER DEATHS SEED

The folder holds `port`, the server's, which may change; the notes go to `notes`.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.processes import die_with_parent
from workstealing.structures.fair_queue import FairMessage, FairQueue, NewMessage

CAPS = {"one": 1, "two": 2}
ACCOUNTS = ("a", "b", "limited", *CAPS)
AT_ONCE, BACKLOG, MOST_ATTEMPTS = 4, 40, 5
# So short that slots of the dead come back meanwhile.
LEASE = 0.25
OUTAGE = (redis.RedisError, OSError)


def queue_at(client: Any, ahead_ms: int = 0, lease: float = LEASE) -> FairQueue:
    """Return the queue as all processes have it."""
    return FairQueue(client, "q", lease, MOST_ATTEMPTS, clock_shift_ms=ahead_ms)


class Notes:
    """The file of notes; each has a kind, who notes it, and words."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, kind: str, who: int, *words: object) -> None:
        """Note something."""
        os.write(self._fd, " ".join(map(str, (kind, who, *words))).encode() + b"\n")


@contextlib.contextmanager
def server_of(folder: Path, *, retries: bool = False) -> Iterator[Any]:
    """Yield a client of the server that the folder names now; with redis-py's retries, or none."""
    port = int((folder / "port").read_text())
    options: dict[str, Any] = {} if retries else {"retry": Retry(NoBackoff(), 0)}
    with redis.Redis(port=port, socket_timeout=60.0, **options) as client:
        yield client


class Consumer:
    """A consumer, in a process of its own, until it is killed."""

    def __init__(self, folder: Path, notes: Notes, life: int, steps: memoryview, slot: int) -> None:
        self.folder, self.notes, self.life = folder, notes, life
        self.steps, self.slot = steps, slot
        self.chance = random.Random(life)
        self.held: list[FairMessage] = []

    def run(self) -> None:
        """Read, work and settle; after a fault, with what is in hand, at the server of then."""
        while True:
            try:
                with server_of(self.folder, retries=self.life % 2 == 0) as client:
                    self.serve(queue_at(client))
            except OUTAGE:
                self.note("fault")
                time.sleep(0.005)

    def serve(self, queue: FairQueue) -> None:
        name = f"c{self.life}"
        while True:
            what = self.chance.random()
            if not self.held or what < 0.3:
                self.note("ask")
                self.took(queue.read_many(name, self.chance.randint(1, 2), block=0.005))
            elif what < 0.5:
                message = self.ending()
                result = queue.exchange(message, consumer=name)
                self.ended(message, result.done)
                self.took(result.messages)
            elif what < 0.8:
                message = self.ending()
                self.ended(message, queue.ack(message))
            elif what < 0.9:
                queue.extend(*self.held)
                self.note("extended")
            else:
                given = self.held.pop()
                self.note("giving", *_named(given))
                queue.nack(given, delay=self.chance.choice([0, 0, 0.01]))

    def took(self, found: list[FairMessage]) -> None:
        for each in found:
            self.held.append(each)
            self.note("got", *_named(each))

    def ending(self) -> FairMessage:
        # It stays in hand until the reply: after a fault it is acknowledged again, maybe late.
        message = self.chance.choice(self.held)
        self.note("ending", *_named(message))
        return message

    def ended(self, message: FairMessage, done: int) -> None:
        self.held.remove(message)
        self.note("ended", *_named(message), done)

    def note(self, kind: str, *words: object) -> None:
        self.notes.add(kind, self.life, *words)
        self.steps[self.slot] += 1


def _named(message: FairMessage) -> tuple[str, str, int]:
    return message.id, message.delivery, int(message.fields[b"n"])


class Producer:
    """Writes messages whenever few wait; a write whose reply was lost may have been."""

    def __init__(self, folder: Path, notes: Notes, seed: int) -> None:
        self.folder, self.notes = folder, notes
        self.chance = random.Random(seed)
        self.written = 0

    def begin(self) -> None:
        """Set the rules, and use all that the consumers use, so that they find it warm."""
        with server_of(self.folder) as client:
            queue = queue_at(client)
            for account, cap in CAPS.items():
                queue.set_rule(account, max_in_flight=cap)
            queue.set_rule("limited", rate=1000, burst=3)
            queue.write("warm", {"n": 0})
            message = queue.exchange(consumer="warm").messages[0]
            queue.extend(message)
            queue.nack(message)
            assert queue.ack(*queue.read_many("warm", 2, block=60.0)) == 1

    def look(self) -> None:
        """Write some if few are left."""
        with contextlib.suppress(*OUTAGE), server_of(self.folder) as client:
            queue = queue_at(client)
            if queue.length() < BACKLOG:
                self.write(queue)

    def write(self, queue: FairQueue) -> None:
        numbers = range(self.written + 1, self.written + 21)
        self.written += 20
        new = [
            NewMessage(
                *(self.chance.choice(ACCOUNTS), {"n": number}),
                delay=self.chance.choice([0, 0, 0, 0.01]),
                priority=self.chance.randrange(2),
                tracking_id=f"t{number}" if number % 3 == 0 else None,
            )
            for number in numbers
        ]
        for number in numbers:
            self.notes.add("writing", 0, number)
        for number, written in zip(numbers, queue.write_many(new), strict=True):
            self.notes.add("wrote", 0, number, written)


class Deaths:
    """Forks consumers, and kills each at a moment of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.notes = folder, Notes(folder)
        self.producer = Producer(folder, self.notes, seed)
        self.chance = random.Random(seed)
        self.steps = memoryview(mmap.mmap(-1, 8 * AT_ONCE)).cast("Q")
        # Slot -> its process, its life, after how many steps and not before when it is killed.
        self.living: dict[int, tuple[int, int, int, float]] = {}
        self.lives = 0

    def run(self, deaths: int) -> None:
        """Kill so many, and end those that are left."""
        self.producer.begin()
        gc.collect()
        gc.freeze()
        for slot in range(AT_ONCE):
            self.fork(slot)
        killed, looked = 0, 0.0
        while killed < deaths:
            if time.monotonic() > looked + 0.03:
                self.producer.look()
                looked = time.monotonic()
            for slot in range(AT_ONCE):
                _, _, steps, moment = self.living[slot]
                if self.steps[slot] >= steps and time.monotonic() >= moment:
                    self.kill(slot)
                    self.fork(slot)
                    killed += 1
            time.sleep(0.002)
        for slot in range(AT_ONCE):
            self.kill(slot)

    def fork(self, slot: int) -> None:
        self.lives += 1
        self.steps[slot] = 0
        child = os.fork()
        if child == 0:
            die_with_parent()
            with contextlib.suppress(BaseException):
                Consumer(self.folder, self.notes, self.lives, self.steps, slot).run()
            self.notes.add("broken", self.lives)
            os._exit(1)
        # Some by the work that they have done, and some whatever they do.
        steps = self.chance.choice([0, self.chance.randint(1, 24)])
        moment = time.monotonic() + self.chance.uniform(0, 0.02 if steps == 0 else 0.0005)
        self.living[slot] = (child, self.lives, steps, moment)

    def kill(self, slot: int) -> None:
        child, life, _, _ = self.living[slot]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        self.notes.add("killed", life)


if __name__ == "__main__":
    Deaths(Path(sys.argv[1]), int(sys.argv[3])).run(int(sys.argv[2]))
