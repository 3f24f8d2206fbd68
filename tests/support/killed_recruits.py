"""Recruits that may be killed at any moment, and the gap between sightings without a clock.

A rule that wants two sightings says how far apart they must lie, so that whatever a live process
has begun is done by then. Here that is seen, and not waited for: sightings become old when each
process that lived when they were there has gone on, or was killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import redis

from support.killed_journal import Work
from support.owners_at_work.owner import DAY
from workstealing.errors import Aborted, OutOfTime, Skipped
from workstealing.jobs.leftovers import Leftovers
from workstealing.recruiting import Slice

GONE_ON = 2
"""So many operations a process must have ended since: one may have begun before."""
_AT_ONCE, _LIMIT, _SECONDS, _MOST_SLICES = 500, 100, 30.0, 200_000
_PAUSE_SECONDS = 0.01
# A busy machine, or an owner that writes: the next slice goes on.
NOT_NOW = (Aborted, OutOfTime, Skipped, redis.TimeoutError, redis.ConnectionError)
_AGE = """
local aged = 0
for number, key in ipairs(KEYS) do
    if redis.call('GET', key) == ARGV[2 * number - 1] then
        redis.call('SET', key, ARGV[2 * number], 'KEEPTTL')
        aged = aged + 1
    end
end
return aged
"""


def slices(jobs: list[Any], client: Any, work: Work) -> Callable[[], object]:
    """Return what does one slice of one of the jobs, with no rest between two laps."""

    def operation() -> None:
        # As a host's recruits: not all the time.
        time.sleep(work.draw.random() * _PAUSE_SECONDS)
        job = work.draw.choice(jobs)
        try:
            removed = job.perform(Slice(work.draw.choice([3, 20, _LIMIT]), _SECONDS))
        except NOT_NOW:
            return
        work.removed(removed)
        if not removed and isinstance(job, Leftovers):
            for key in places(job):
                if float(client.hget(key, "rests") or 0):
                    client.delete(key)

    return operation


def places(job: Leftovers) -> list[bytes]:
    """Return the keys of the places of a job's walks."""
    rules = [each for each in job.rules if not each.reports_only]
    return [
        job.place_key(each, node, dry_run=False)
        for each in rules
        for node in job.job_client.nodes()
    ]


def lap(job: Any, client: Any, tell: Callable[[], object]) -> int:
    """Do slices until each walk of a job has come to its end; return how many items went.

    Arguments:
        tell: called after each slice.
    """
    removed = 0
    walks = places(job) if isinstance(job, Leftovers) else []
    if walks:
        client.delete(*walks)
    for _ in range(_MOST_SLICES):
        try:
            some = job.perform(Slice(_LIMIT, _SECONDS))
        except NOT_NOW:
            continue
        removed += some
        tell()
        is_over = all(int(client.hget(key, "laps") or 0) for key in walks) if walks else not some
        if is_over:
            return removed
    raise AssertionError(f"the walks of {job.name} have not ended")


class Gap:
    """The gap of one job's sightings.

    Arguments:
        job: its name.
        of_lives: see `Owner`.
    """

    def __init__(self, client: Any, job: str, *, of_lives: bool) -> None:
        self._client, self._job, self._of_lives = client, job, of_lives
        self._seen: dict[bytes, bytes] = {}
        self._alive: dict[int, int] | None = None
        self.passed = 0

    def turn(self, alive: Mapping[int, int]) -> None:
        """Let the gap pass if it has, and begin the next one.

        Arguments:
            alive: how many operations each living process has ended, by its life.
        """
        if self._alive is not None:
            if not self._is_over(alive):
                return
            self.age(self._seen)
            self.passed += 1
        self._alive, self._seen = dict(alive), self.young()

    def young(self) -> dict[bytes, bytes]:
        """Return the sightings that are not old yet."""
        pattern = f"*:ws:leftovers:{self._job}:seen:*"
        names = list(self._client.scan_iter(match=pattern, count=2_000))
        limit = self._client.time()[0] - DAY
        found: dict[bytes, bytes] = {}
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            values = zip(some, self._client.mget(some), strict=True)
            found |= {name: one for name, one in values if one and _since(one) > limit}
        return found

    def age(self, seen: Mapping[bytes, bytes]) -> int:
        """Let sightings be old, if they are the same still; return how many are."""
        aged, names = 0, list(seen)
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            pairs = [part for name in some for part in (seen[name], _older(seen[name]))]
            aged += self._client.eval(_AGE, len(some), *some, *pairs)
        return aged

    def _is_over(self, alive: Mapping[int, int]) -> bool:
        before = self._alive or {}
        if self._of_lives:
            return not before.keys() & alive.keys()
        return all(life not in alive or alive[life] >= n + GONE_ON for life, n in before.items())


def _since(value: bytes) -> float:
    return float(value.partition(b":")[0])


def _older(value: bytes) -> bytes:
    return b"%d:%b" % (_since(value) - 2 * DAY, value.partition(b":")[2])
