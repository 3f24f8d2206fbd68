"""A program: an owner's processes are killed at work, again and again, while recruits collect.

Arguments: the owner's name and the URL of its home; kills; pace: the mean seconds of a life;
planted: go by an unsafe rule. It prints a line of JSON every few seconds, and the result as the
last one. This process is a parent that is warm: it has imported what its children need. A thread of
its own would be lost in them, so there is none until the last of them is dead.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.killed_journal import CHILDREN, Counts, Journal, Work
from support.killed_recruits import Gap, lap, slices
from support.owners_at_work import OWNERS, owner_named
from support.owners_at_work.owner import Owner
from support.patience import PATIENT_SECONDS, set_timeout
from workstealing.jobs.leftovers import Leftovers

RECRUIT = "recruit"
RECRUITS, RECRUITS_PACE = 2, 2.5
"""So many are at work at once, each of which lives so much longer than a process of the owner's."""
TURN_SECONDS, CHECK_SECONDS, PROGRESS_SECONDS = 0.25, 0.5, 4.0
CHECKED_AT_ONCE, MOST_ROUNDS = 200, 15
MOST_LOST, MOST_ERRORS = 3, 3
_POLL_SECONDS = 0.002


@dataclass
class Result:
    """What came of the kills.

    Fields: owner; kills: of its processes, and recruits: of recruits; operations: of the owner's
    processes; checked: looks at live items; removed: items by recruits, at least; gaps: that have
    passed; rounds: of sightings after the kills; seconds; lost: live items; left: garbage; errors:
    processes that failed by themselves.
    """

    owner: str
    kills: int = 0
    recruits: int = 0
    operations: int = 0
    checked: int = 0
    removed: int = 0
    gaps: int = 0
    rounds: int = 0
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    errors: int = 0


@dataclass
class Child:
    """A child. Fields: pid; life: its number; role; slot; until: its end, once it is at work.

    is_killed: it has been sent its signal, and may still have to die of it.
    """

    pid: int
    life: int
    role: str
    slot: int
    until: float = 0.0
    is_killed: bool = False


class Killing:
    """The killing of one owner's processes.

    Arguments:
        folder: for the journal.
    """

    def __init__(self, owner: Owner, folder: Path, pace: float) -> None:
        self._owner, self._pace = owner, pace * owner.pace
        self._client = owner.connected()
        self._journal, self._counts = Journal(folder / "journal"), Counts()
        roles = [role for role, number in owner.processes.items() for _ in range(number)]
        self._roles = [*roles, *[RECRUIT] * RECRUITS]
        assert len(self._roles) <= CHILDREN
        self._children: dict[int, Child] = {}
        self._lives = 0
        self._draw = random.Random()
        self._began = self._said = time.monotonic()
        self.result = Result(owner.name)

    def run(self, kills: int) -> Result:
        """Kill so often, then collect until nothing is left; return what came of it."""
        self._owner.begin(self._client)
        names = [each.name for each in self._owner.jobs(self._client) if _has_sightings(each)]
        gaps = [Gap(self._client, n, of_lives=n in self._owner.of_lives) for n in names]
        # Collections would copy the pages that the children share.
        gc.collect()
        gc.freeze()
        turns = {"turn": 0.0, "check": 0.0}
        try:
            while min(self.result.kills, kills * self.result.recruits) < kills:
                if self._has_failed():
                    break
                self._go_on()
                now = time.monotonic()
                if now > turns["turn"]:
                    self._turn(gaps)
                    turns["turn"] = time.monotonic() + TURN_SECONDS
                if now > turns["check"]:
                    self._check(CHECKED_AT_ONCE)
                    turns["check"] = time.monotonic() + CHECK_SECONDS
                self._tell()
        finally:
            for each in list(self._children.values()):
                self._end(each)
        self._check(None)
        if not self.result.lost and not self._has_failed():
            self._finish(gaps)
        self.result.gaps += sum(each.passed for each in gaps)
        self.result.seconds = round(time.monotonic() - self._began, 1)
        return self.result

    def _has_failed(self) -> bool:
        return len(self.result.lost) >= MOST_LOST or self.result.errors >= MOST_ERRORS

    def _go_on(self) -> None:
        """Start children where one is missing, and kill those whose end has come."""
        for slot, role in enumerate(self._roles):
            if slot not in self._children:
                self._start(slot, role)
        now = time.monotonic()
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._is_dead(child, status)
            elif not child.until:
                if self._counts.of(child.slot)[0]:
                    of = RECRUITS_PACE if child.role == RECRUIT else 1.0
                    child.until = now + self._draw.expovariate(1 / (self._pace * of))
            elif child.until < now and not child.is_killed:
                # It is dead when it has its turn; others go on meanwhile.
                os.kill(child.pid, signal.SIGKILL)
                child.is_killed = True
                if child.role == RECRUIT:
                    self.result.recruits += 1
                else:
                    self.result.kills += 1
        time.sleep(_POLL_SECONDS)

    def _start(self, slot: int, role: str) -> None:
        self._lives += 1
        self._counts.clear(slot)
        life, parent = self._lives, os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
                # What an owner's processes print is not what this program says.
                os.dup2(2, 1)
                if os.getppid() == parent:
                    self._be(role, Work(self._journal, self._counts, slot, life))
            except BaseException:  # noqa: BLE001 - nothing of a child may get into these frames
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(1)
        self._children[slot] = Child(pid, life, role, slot)

    def _be(self, role: str, work: Work) -> None:
        """Work, in a child, until it is killed."""
        random.seed(work.life)
        if role == RECRUIT:
            client = self._owner.connected()
            jobs = self._owner.jobs(client)
            for each in jobs:
                if hasattr(each, "connect"):
                    each.connect(60.0)
            operation = slices(jobs, client, work)
        else:
            operation = self._owner.operation(role, work)
        while True:
            work.operated()
            operation()

    def _end(self, child: Child) -> None:
        # Nobody else has waited for it, so its number is its own.
        os.kill(child.pid, signal.SIGKILL)
        self._is_dead(child, os.waitpid(child.pid, 0)[1])

    def _is_dead(self, child: Child, status: int) -> None:
        del self._children[child.slot]
        operations, checked, removed = self._counts.of(child.slot)
        self.result.operations += operations if child.role != RECRUIT else 0
        self.result.checked += checked
        self.result.removed += removed
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            self.result.errors += 1

    def _turn(self, gaps: list[Gap]) -> None:
        """Let time pass for what is dead, and for what has gone on."""
        some = [each for each in self._children.values() if each.role != RECRUIT]
        self._owner.passes(self._client, {each.life for each in some})
        alive = {each.life: self._counts.of(each.slot)[0] for each in some}
        busy = [each.life for each in some if each.role in self._owner.endless]
        for each in gaps:
            each.turn({life: done for life, done in alive.items() if life not in busy})

    def _check(self, most: int | None) -> None:
        """See that live items are there: some of them, or all."""
        self._journal.read_on()
        names = list(self._journal.items)
        if most is not None and len(names) > most:
            names = self._draw.sample(names, most)
        items = {each: self._journal.items[each] for each in names}
        absent = self._owner.missing(self._client, items)
        self.result.checked += len(items)
        # One that was ended meanwhile was said to be before.
        self._journal.read_on()
        for each in absent:
            if self._journal.items.get(each) == items[each]:
                self._journal.lost.append(f"{each}: {items[each]}")
                del self._journal.items[each]
        self.result.lost = [*self._journal.lost, *self._owner.broken(self._client)]

    def _finish(self, gaps: list[Gap]) -> None:
        """Collect until nothing is left; one thing that goes may make another one garbage."""
        self._owner.passes(self._client, set())
        work = Work(self._journal, self._counts, 0, self._lives + 1)
        self._owner.finish(self._client, work)
        jobs = self._owner.jobs(self._client)
        for each in jobs:
            if hasattr(each, "connect"):
                each.connect(60.0)
        for _ in range(MOST_ROUNDS):
            self.result.rounds += 1
            removed = sum(lap(each, self._client, self._tell) for each in jobs)
            self.result.removed += removed
            backlog = [f"{each.name} counts {n}" for each in jobs if (n := _backlog(each))]
            self.result.left = [*self._owner.left(self._client), *backlog]
            self._say()
            if self.result.rounds > 1 and not removed and not self.result.left:
                break
            for each in gaps:
                each.age(each.young())
        for each in jobs:
            if hasattr(each, "close"):
                each.close()
        self._check(None)

    def _tell(self) -> None:
        """Say how it goes on, every few seconds."""
        if time.monotonic() - self._said > PROGRESS_SECONDS:
            self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        self.result.seconds = round(time.monotonic() - self._began, 1)
        sys.stdout.write(json.dumps(_short(self.result)) + "\n")
        sys.stdout.flush()


def _has_sightings(job: Any) -> bool:
    return isinstance(job, Leftovers)


def _backlog(job: Any) -> int:
    """Return how much garbage a job counts."""
    return int(job.backlog(60.0).count)


def _short(result: Result) -> dict[str, Any]:
    """Return a result of which a few lost items and a little garbage are named."""
    counts = {"lost_count": len(result.lost), "left_count": len(result.left)}
    return {**asdict(result), **counts, "lost": result.lost[:10], "left": result.left[:10]}


def main() -> None:
    """Kill, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("owner", choices=OWNERS)
    parser.add_argument("home")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--pace", type=float, default=0.08)
    parser.add_argument("--planted", action="store_true")
    options = parser.parse_args()
    # A busy machine is no dead server.
    set_timeout(pytest.MonkeyPatch(), PATIENT_SECONDS)
    owner = owner_named(options.owner, options.home, planted=options.planted)
    with tempfile.TemporaryDirectory() as folder:
        killing = Killing(owner, Path(folder), options.pace)
        result = killing.run(options.kills)
    sys.stdout.write(json.dumps(_short(result)) + "\n")


if __name__ == "__main__":
    main()
