"""Settings for a whole fleet, in Redis. All processes read them with each report."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from workstealing.clock import SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, RateError, UnknownJobError
from workstealing.metrics.events import (
    CLEARED,
    KEEP_SECONDS,
    MOST_EVENTS,
    PAUSED,
    RATE_SET,
    RESUMED,
    SETTINGS_LOST,
    sent,
    this_host,
    this_user,
)
from workstealing.metrics.gathering import sendable
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import checked_ledger_name, events_key, settings_key, text, texts
from workstealing.recruiting.adaptive import Adaptive
from workstealing.recruiting.checks import checked_name, checked_rate
from workstealing.recruiting.faults import FaultLog
from workstealing.recruiting.recruiter import Recruiter
from workstealing.store.connection import Command
from workstealing.store.fleet import one_server
from workstealing.store.job_client import is_async
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation, Steps, drive
from workstealing.store.scripts import load
from workstealing.structures.stored import holding_ours

logger = logging.getLogger("workstealing")

_PAUSED = "paused:"
_RATE = "rate:"
# It is written with the first setting and stays, so a follower that has seen it knows of a loss. It
# has no colon, so an earlier release takes it for no job's setting.
_KEPT = "kept"
_LONGEST_NAME = 1_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One job's settings in every process.

    Fields: paused: whether it rests everywhere; rate: its rate in every process, None: each keeps
    its own.
    """

    paused: bool = False
    rate: float | None = None


class SharedSettings:
    """The fleet's settings by job. They hold one interval later in each process with `follow`.

    A process ignores the settings of jobs that it does not know. Each change is an event of the
    fleet, with the values before and after it, this host and the user.

    Arguments:
        client: a blocking client of redis-py.
        name: of the ledger that the processes report to.
        user: who changes them, by default the user who runs this process.

    Raises: ConfigurationError. No round trip. Each method costs one, and one more where a server
    sees its script for the first time; it raises LayoutError if the key holds something else, and
    errors of redis-py pass through. Where only the event is refused, by a full server or a user's
    rights, the change counts, and the log says so.
    """

    def __init__(self, client: Any, name: str = "default", user: str | None = None) -> None:
        client = one_server(client, "a ledger with its settings")
        if is_async(client):
            raise ConfigurationError(
                "the fleet's settings need a blocking client, not an asyncio one"
            )
        self.name = checked_ledger_name(name)
        self._client = client
        self._key = settings_key(name)
        self._user = this_user() if user is None else sent(user)

    def settings(self) -> dict[str, Setting]:
        """Return the settings by job, without a stranger's fields."""
        paused: set[str] = set()
        rates: dict[str, float] = {}
        with self._holding():
            found = self._client.hgetall(self._key)
        for field, value in texts(found).items():
            kind, colon, job = field.partition(":")
            if not _can_be_set(job):
                continue
            if kind + colon == _PAUSED:
                paused.add(job)
            elif kind + colon == _RATE:
                rate = _legal_rate(value, job)
                if rate is not None:
                    rates[job] = rate
        return {job: Setting(job in paused, rates.get(job)) for job in sorted(paused | set(rates))}

    def pause(self, job: str) -> None:
        """Let a job rest in every process.

        Arguments:
            job: its name.
        """
        self._set(PAUSED, job, {_PAUSED + _checked_job(job): "1"})

    def resume(self, job: str) -> None:
        """End a pause: each process goes back to its own state.

        Arguments:
            job: its name.
        """
        self._set(RESUMED, job, {_PAUSED + _checked_job(job): ""})

    def set_rate(self, job: str, rate: float) -> None:
        """Give a job one rate in every process.

        A process whose other jobs leave no room for it keeps its own rate. Such a process logs the
        refusal and reports it to the ledger (`JobMinute.refused`), for pages and `status`.

        Arguments:
            job: its name.
            rate: 0 < rate <= 1.

        Raises: RateError; then nothing has changed.
        """
        job = _checked_job(job)
        self._set(RATE_SET, job, {_RATE + job: repr(checked_rate(rate, job))})

    def clear(self, job: str) -> None:
        """Remove a job's settings: each process goes back to its own.

        A loss of the settings is confirmed by it, too: processes no longer report it.
        """
        job = _checked_job(job)
        self._set(CLEARED, job, {_PAUSED + job: "", _RATE + job: ""})

    def _set(self, kind: str, job: str, fields: Mapping[str, str]) -> None:
        pairs = [part for pair in fields.items() for part in pair]
        args = (kind, sent(job), this_host(), self._user, MOST_EVENTS, KEEP_SECONDS, _KEPT, *pairs)
        keys = (self._key, events_key(self.name))

        def steps() -> Steps[str]:
            _, unnoted = yield Operation(load("ledger/set"), keys, args)
            return text(unnoted)

        unnoted = drive(self._client, steps())
        if unnoted:
            logger.warning("the fleet's setting holds, but is no event: %s", unnoted)

    def _holding(self) -> AbstractContextManager[None]:
        return holding_ours(to_bytes(self._key))


def follow(recruiter: Recruiter, ledger: Ledger) -> None:
    """Let a recruiter's jobs follow the fleet's settings, with each send of the ledger.

    The question rides in the ledger's own pipeline: one HMGET for the installed jobs. A changed
    setting is put in force. After the removal of a setting the job gets its old rate back, or ends
    its rest. An illegal setting is logged and harms nobody. A second call changes nothing.

    Arguments:
        ledger: one of its hooks, by `recruiter.add_hook(ledger)`.

    No round trip.
    """
    followers = _followers.setdefault(ledger, WeakSet())
    if recruiter in followers:
        return
    followers.add(recruiter)
    follower = _Follower(recruiter, ledger)
    ledger.accompany(follower.ask, follower.hear)


_ON_THEIR_OWN = "Each process has gone back to its own"

_followers: WeakKeyDictionary[Ledger, WeakSet[Recruiter]] = WeakKeyDictionary()


class _Follower:
    """One recruiter's settings from the fleet; the ledger's thread alone uses it."""

    def __init__(self, recruiter: Recruiter, ledger: Ledger) -> None:
        self._recruiter = ref(recruiter)
        self._ledger = ref(ledger)
        self._key = settings_key(ledger.name)
        self._faults = FaultLog(SYSTEM_CLOCK)
        self._asked: list[str] = []
        # By job: the fleet's rate, and the job's own rate before it.
        self._rates: dict[str, tuple[float, float | Adaptive]] = {}
        self._paused: set[str] = set()
        # Whether the settings have been there, and what was lost with them.
        self._knows_kept = False
        self._lost: dict[str, str] = {}

    def ask(self) -> list[Command]:
        """Return the question for the settings of the installed jobs."""
        recruiter = self._recruiter()
        jobs = () if recruiter is None else recruiter.jobs()
        self._asked = [job for job in jobs if _can_be_set(sendable(job))]
        installed = set(self._asked)
        self._paused &= installed
        self._rates = {job: rates for job, rates in self._rates.items() if job in installed}
        if not self._asked:
            return []
        fields = [kind + sendable(job) for job in self._asked for kind in (_PAUSED, _RATE)]
        return [("HMGET", self._key, *fields, _KEPT)]

    def hear(self, replies: Sequence[Any]) -> None:
        """Put changed settings in force."""
        recruiter = self._recruiter()
        if recruiter is None or not replies:
            return
        (values,) = replies
        if isinstance(values, Exception):
            raise values
        *values, kept = values
        self._note_loss(kept is not None)
        settings = zip(self._asked, values[::2], values[1::2], strict=True)
        crowded = [each for each in settings if self._take(recruiter, *each) is not None]
        refused: dict[str, str] = {}
        # A second trial, because other jobs may have given way.
        for setting in crowded:
            error = self._take(recruiter, *setting)
            if error is not None:
                self._faults.report(f"the fleet's setting of job {setting[0]!r}", error)
                refused[setting[0]] = f"{text(setting[2] or 'none')} {error}"
        ledger = self._ledger()
        if ledger is not None:
            ledger.refuse(self._asked, refused)

    def _note_loss(self, is_kept: bool) -> None:
        """Note that the settings have vanished, which nobody has removed: a server was emptied."""
        lost_now = self._knows_kept and not is_kept
        if lost_now:
            held = {job: [f"had the rate {rate:g}"] for job, (rate, _) in self._rates.items()}
            for job in self._paused:
                held.setdefault(job, []).insert(0, "was paused")
            self._lost = {job: " and ".join(said) for job, said in sorted(held.items())}
            told = (
                "; ".join(f"{job} {said}" for job, said in self._lost.items()) or "no job had any"
            )
            self._faults.warn("the fleet's settings were lost", f"{told}. {_ON_THEIR_OWN}")
        if is_kept:
            self._lost = {}
        self._knows_kept = is_kept
        ledger = self._ledger()
        if ledger is not None:
            if lost_now:
                for job, said in self._lost.items():
                    ledger.events.note(SETTINGS_LOST, job, said)
            ledger.lose(self._lost)

    def _take(
        self, recruiter: Recruiter, job: str, paused: Any, rate: Any
    ) -> ConfigurationError | ValueError | None:
        """Put one job's setting in force; return its fault, None: it has none."""
        try:
            self._pause(recruiter, job, paused is not None)
            self._rate(recruiter, job, None if rate is None else text(rate))
        except UnknownJobError:
            # The job was uninstalled in this moment.
            self._paused.discard(job)
            self._rates.pop(job, None)
        except (ConfigurationError, ValueError) as error:
            return error
        return None

    def _pause(self, recruiter: Recruiter, job: str, wanted: bool) -> None:
        if wanted and not _is_paused(recruiter, job):
            recruiter.pause(job)
            self._paused.add(job)
        elif not wanted and job in self._paused:
            self._paused.discard(job)
            recruiter.resume(job)

    def _rate(self, recruiter: Recruiter, job: str, value: str | None) -> None:
        held = self._rates.get(job)
        if value is None:
            if held is not None:
                # A rate that the process has set itself meanwhile stays.
                if recruiter.given_rate(job) == held[0]:
                    recruiter.set_rate(job, held[1])
                del self._rates[job]
            return
        rate = checked_rate(_number(value, job), job)
        present = recruiter.given_rate(job)
        if present != rate:
            # The process will go back to the rate that it has set itself meanwhile.
            own = present if held is None or present != held[0] else held[1]
            recruiter.set_rate(job, rate)
            self._rates[job] = (rate, own)


def _is_paused(recruiter: Recruiter, job: str) -> bool:
    try:
        return recruiter.stats()["jobs"][job]["paused"]
    except KeyError:
        raise UnknownJobError(f"no job {job!r} is installed") from None


def _checked_job(job: object) -> str:
    name = sendable(checked_name(job))
    if not _can_be_set(name):
        raise ConfigurationError(f"a job's name has at most {_LONGEST_NAME} letters")
    return name


def _can_be_set(name: str) -> bool:
    return bool(name.strip()) and len(name) <= _LONGEST_NAME


def _number(value: str, job: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise RateError(
            f"the rate of job {job!r} is {value[:40]!r} in Redis; expected a number, 0 < rate <= 1"
        ) from None


def _legal_rate(value: str, job: str) -> float | None:
    try:
        return checked_rate(_number(value, job), job)
    except RateError:
        return None
