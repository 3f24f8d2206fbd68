"""Garbage of RQ in Redis: ghosts of jobs, cancelled and failed jobs, dead workers, results."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from workstealing.clock import Duration, seconds_of
from workstealing.jobs.leftovers import (
    CLIENT,
    DECLARED,
    LIVE,
    Declared,
    Garbage,
    Item,
    Leftovers,
    Offer,
    Removal,
    Rule,
    Unknown,
    Verdicts,
    call,
    key_removed,
    keys,
    literally,
    look,
    member_removed,
    members,
    seen_twice,
)
from workstealing.jobs.leftovers.rule import DAY

__all__ = [
    "DeadWorkers",
    "EndedJobs",
    "GhostJobs",
    "OrphanedResults",
    "RqLeftovers",
    "StrandedJobs",
    "WorkersWithoutBirth",
]

VERSIONS = "RQ 2.0 to 3.0"
PREFIX = "rq"
_FORMATS = ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ")
_HOUR = 3_600.0


class _OfRq(Rule):
    """The part that the rules of RQ share."""

    owner = "RQ"
    versions = VERSIONS
    asked: ClassVar[Sequence[Mapping[str, Any]]] = ({},)
    _prefix: bytes
    _retention: float

    def offer(self) -> Offer:
        """Offer the job of RQ, with the prefix of its keys and the retention of this rule."""
        options: dict[str, Any] = {}
        if self._prefix != PREFIX.encode():
            options["prefix"] = self._prefix.decode()
        if hasattr(self, "_retention"):
            options["retention"] = Declared("RETENTION", self._retention)
        return Offer(call(RqLeftovers, CLIENT, **options))


class GhostJobs(_OfRq):
    """Hashes of jobs that hold a heartbeat and nothing else.

    Arguments:
        gap: between the two sightings, in seconds or as a timedelta.
        prefix: of RQ's keys (RQ 3's `RQ_KEY_PREFIX`).

    Proof: RQ writes all fields of a job at once, and deletes the whole hash. A worker's heartbeat
    that comes after the deletion makes a hash anew with that one field. To RQ a hash without the
    field `data` is no job; it only keeps a unique job of that name out.
    """

    name = "rq.ghosts"
    finds = "Hashes of deleted jobs that a worker's last heartbeat has made anew."

    def __init__(self, gap: Duration = _HOUR, prefix: str = PREFIX) -> None:
        self.certainty = seen_twice(gap)
        self.where, self._prefix = keys(f"{literally(prefix)}:job:*", "hash"), prefix.encode()

    def verdict(self, item: Item) -> Verdicts:
        """Judge a hash by the names of its fields."""
        size, heartbeat, left = yield look(
            ("HLEN", item.key),
            ("HGET", item.key, "last_heartbeat"),
            ("PTTL", item.key),
            watch=item.key,
        )
        if size != 1 or heartbeat is None or left != -1:
            return LIVE
        return key_removed(item.key, heartbeat) if _time_of(heartbeat) < item.now else LIVE


class EndedJobs(_OfRq):
    """Jobs that were cancelled, or have failed, longer ago than a retention.

    Arguments:
        status: "canceled" or "failed" (also those that were stopped: they are in the same
            registry).
        retention: in seconds or as a timedelta.
        prefix: of RQ's keys.

    A job goes with its place in the registry, its results and its dependencies. A job on which
    others depend stays: they may wait for it. So does one that a worker still executes, and one
    with a rate limit (RQ 3).
    """

    certainty = DECLARED
    asked = (
        {"status": "canceled", "retention": 30 * DAY},
        {"status": "failed", "retention": 30 * DAY},
    )

    def __init__(self, status: str, retention: Duration, prefix: str = PREFIX) -> None:
        self.name, self._status, self._prefix = f"rq.{status}", status, prefix.encode()
        self.finds = f"Jobs that are {status} for longer than the retention."  # type: ignore[misc]
        self.where = members(f"{literally(prefix)}:{status}:*", "zset")
        self._retention = seconds_of(retention, "retention")

    def verdict(self, item: Item) -> Verdicts:
        """Judge a job by its status, and by when it was cancelled or failed."""
        job, results, waits, *used = _keys_of(self._prefix, item.member)
        score, (status, ended, limited), last, is_there, is_waiting, is_used = yield look(
            ("ZSCORE", item.key, item.member),
            ("HMGET", job, "status", "ended_at", "rate_limit_key"),
            ("XREVRANGE", results, "+", "-", "COUNT", 1),
            *(("EXISTS", each) for each in (job, waits)),
            ("EXISTS", *used),
            watch=(item.key, job, results, *used),
        )
        is_other = is_there and status not in _STATUSES[self._status]
        if score is None or is_used or limited or is_other:
            return LIVE
        if is_there:
            since = float(score) if self._status == "canceled" else _failed_at(ended, last)
            if since > item.now - self._retention:
                return LIVE
        # Where the job is gone already, its results have a time to live of their own.
        parts = {job: is_there, results: is_there and last, waits: is_waiting}
        whole = (Removal(key) for key, is_found in parts.items() if is_found)
        return Garbage((*whole, Removal(item.key, "zset", item.member or b"")))


class StrandedJobs(_OfRq):
    """Failed jobs without a place in the registry of failed ones, longer ago than a retention.

    Arguments:
        retention: in seconds or as a timedelta.
        gap: between the two sightings.
        prefix: of RQ's keys.

    RQ's `requeue` takes the place away first, and puts the job into its queue by a later command: a
    process that was killed in between leaves a job that RQ itself never looks at again. A process
    that goes on writes the whole job anew, whatever has become of the job. Others stay as in
    `EndedJobs`.
    """

    name = "rq.stranded"
    finds = "Failed jobs that are in no registry, since a process died that queued them again."
    asked = ({"retention": 30 * DAY},)

    def __init__(self, retention: Duration, gap: Duration = _HOUR, prefix: str = PREFIX) -> None:
        self.certainty = seen_twice(gap)
        self.where = keys(f"{literally(prefix)}:job:*", "hash")
        self._prefix = prefix.encode()
        self._retention = seconds_of(retention, "retention")

    def verdict(self, item: Item) -> Verdicts:
        """Judge a job by its status, its place in the registry, and by when it failed."""
        number = item.key.removeprefix(self._prefix + b":job:")
        job, results, waits, *used = _keys_of(self._prefix, number)
        ((status, origin, ended, limited),) = yield look(
            ("HMGET", job, "status", "origin", "ended_at", "rate_limit_key"), watch=job
        )
        if status not in _STATUSES["failed"] or not origin or limited:
            return LIVE
        registry = b"%b:failed:%b" % (self._prefix, origin)
        place, last, is_waiting, is_used = yield look(
            ("ZSCORE", registry, number),
            ("XREVRANGE", results, "+", "-", "COUNT", 1),
            ("EXISTS", waits),
            ("EXISTS", *used),
            watch=(registry, results, *used),
        )
        if place is not None or is_used:
            return LIVE
        since = _failed_at(ended, last)
        if since > item.now - self._retention:
            return LIVE
        parts = {job: True, results: last, waits: is_waiting}
        whole = tuple(Removal(key) for key, is_found in parts.items() if is_found)
        return Garbage(whole, b"%f" % since)


class DeadWorkers(_OfRq):
    """Names of workers whose hashes have ended.

    Arguments:
        gap: between the two sightings, in seconds or as a timedelta.
        prefix: of RQ's keys.

    Proof: a worker writes its hash and its name in one transaction, and its heartbeats keep the
    hash. The absence of the hash is WATCHed. The risk that is left: a worker that was stopped for
    longer than its hash lives (8 minutes) and the gap goes on without its name; RQ itself takes the
    name away in that case, at once, when a worker starts or `Worker.all` is called.
    """

    name = "rq.dead_workers"
    finds = "Names of workers in registries, whose own hashes have ended."

    def __init__(self, gap: Duration = _HOUR, prefix: str = PREFIX) -> None:
        self.certainty = seen_twice(gap)
        self.where, self._prefix = members(f"{literally(prefix)}:workers*", "set"), prefix.encode()
        self._all, self._worker = f"{prefix}:workers".encode(), f"{prefix}:worker:".encode()

    def verdict(self, item: Item) -> Verdicts:
        """Judge a name by its hash."""
        assert item.member is not None, "the items are members"
        if item.key != self._all and not item.key.startswith(self._all + b":"):
            return Unknown("it is no registry of workers")
        if not item.member.startswith(self._worker):
            return Unknown("it is no name of a worker")
        (there,) = yield look(("EXISTS", item.member), watch=item.member)
        return LIVE if there else member_removed(item.key, "set", item.member, b"no hash")


class WorkersWithoutBirth(_OfRq):
    """Hashes of workers that were written to after they had ended, before RQ 2.9.

    Arguments:
        gap: between the two sightings, in seconds or as a timedelta.
        prefix: of RQ's keys.

    Proof: a worker is born by one transaction that writes `birth` and the time to live. The
    worker's next heartbeat would change `last_heartbeat` and give the hash a time to live.
    """

    name = "rq.workers_without_birth"
    finds = "Hashes of workers that have no birth and no time to live."

    def __init__(self, gap: Duration = _HOUR, prefix: str = PREFIX) -> None:
        self.certainty = seen_twice(gap)
        self.where, self._prefix = keys(f"{literally(prefix)}:worker:*", "hash"), prefix.encode()

    def verdict(self, item: Item) -> Verdicts:
        """Judge a hash: a live worker's has a birth and a time to live, and changes."""
        born, left, size, beat = yield look(
            ("HEXISTS", item.key, "birth"),
            ("PTTL", item.key),
            ("HLEN", item.key),
            ("HGET", item.key, "last_heartbeat"),
            watch=item.key,
        )
        if born or left != -1 or not size:
            return LIVE
        return key_removed(item.key, b"%d:%b" % (size, beat or b""))


class OrphanedResults(_OfRq):
    """Streams of results whose jobs are gone; RQ 2 leaves them when a job is deleted.

    Arguments:
        gap: between the two sightings, in seconds or as a timedelta.
        prefix: of RQ's keys.

    Proof: a job that ends writes its hash and its result in one transaction, and both live equally
    long. A result without a job can be read only by a process that has kept the job's object.
    """

    name = "rq.results"
    finds = "Streams of results without a time to live, whose jobs are gone."

    def __init__(self, gap: Duration = _HOUR, prefix: str = PREFIX) -> None:
        self.certainty = seen_twice(gap)
        self.where, self._prefix = keys(f"{literally(prefix)}:results:*", "stream"), prefix.encode()
        self._job, self._results = f"{prefix}:job:".encode(), f"{prefix}:results:".encode()

    def verdict(self, item: Item) -> Verdicts:
        """Judge a stream by its job."""
        job = self._job + item.key.removeprefix(self._results)
        there, left, last = yield look(
            ("EXISTS", job),
            ("PTTL", item.key),
            ("XREVRANGE", item.key, "+", "-", "COUNT", 1),
            watch=(job, item.key),
        )
        if there or left != -1:
            return LIVE
        if last and b"type" not in last[0][1]:
            return Unknown("its entries are no results of RQ's")
        return key_removed(item.key, last[0][0] if last else b"empty")


class RqLeftovers(Leftovers):
    """Removes what RQ leaves in Redis.

    Arguments:
        client: of RQ's server.
        prefix: of RQ's keys (`RQ_KEY_PREFIX`, since RQ 3).
        retention: after which cancelled and failed jobs go, in seconds or as a timedelta, None:
            they stay.
        gap: between two sightings; further ones: of `Leftovers`.
    """

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = PREFIX,
        retention: Duration | None = None,
        gap: Duration = _HOUR,
        name: str = "rq_leftovers",
        **options: Any,
    ) -> None:
        kinds = (GhostJobs, DeadWorkers, WorkersWithoutBirth, OrphanedResults)
        rules: list[Rule] = [each(gap, prefix) for each in kinds]
        if retention is not None:
            rules += [EndedJobs(each, retention, prefix) for each in _STATUSES]
            rules.append(StrandedJobs(retention, gap, prefix))
        super().__init__(client, rules, name=name, **options)


_STATUSES = {"canceled": (b"canceled",), "failed": (b"failed", b"stopped")}


def _keys_of(prefix: bytes, number: bytes | None) -> tuple[bytes, bytes, bytes, bytes, bytes]:
    """Return the keys of a job: its own, and those of its results and its dependencies.

    The last two exist while it is used: the jobs that wait for it, and those who execute it.
    """
    of_job = b"%b:job:%b" % (prefix, number or b"")
    dependencies = b"%b:job::%b:dependencies" % (prefix, number or b"")
    return (
        of_job,
        b"%b:results:%b" % (prefix, number or b""),
        dependencies,
        of_job + b":dependents",
        b"%b:executions:%b" % (prefix, number or b""),
    )


def _failed_at(ended: bytes | None, last: Any) -> float:
    """Return when a job has failed: when it ended, or left its last result.

    An abandoned job has no end, or that of an earlier run. Raises: ValueError if the job has
    neither of them.
    """
    times = [_time_of(ended)] if ended else []
    times += [int(number.partition(b"-")[0]) / 1000 for number, _ in last]
    if not times:
        raise ValueError("the job does not say when it failed")
    return max(times)


def _time_of(text: bytes | None) -> float:
    """Return a time of RQ's in seconds since the epoch. Raises: ValueError for any other text."""
    for each in _FORMATS:
        try:
            found = dt.datetime.strptime((text or b"").decode(), each).replace(tzinfo=dt.UTC)
        except ValueError:
            continue
        return found.timestamp()
    raise ValueError(f"{text!r} is no time of RQ's")
