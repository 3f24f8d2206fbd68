"""The admin's actions: each one returns the sentence that the page then shows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from workstealing.dashboard.queries import listed, member_of
from workstealing.dashboard.watched import SetsAside, Watched, exact_item, item_key
from workstealing.errors import ConfigurationError, RefusedError
from workstealing.recruiting import Outcome, Recruiter
from workstealing.recruiting.job import counted, would_handle
from workstealing.recruiting.slice import spoken
from workstealing.safe_text import rate_text, visible

logger = logging.getLogger("workstealing")

MOST_AT_ONCE = 1000
"""How many dead items of each part of a structure one click puts back or forgets."""

# Only a long item is searched for by its digest, and long items are large.
_LARGEST_SEARCH_BYTES = 64 * 2**20

_RIDE = "processes pick it up at their next flush"


class FleetSettings(Protocol):
    """The settings by which all processes of a fleet treat a job."""

    def pause(self, job: str) -> None:
        """Pause the job everywhere."""

    def resume(self, job: str) -> None:
        """End the pause."""

    def set_rate(self, job: str, rate: float) -> None:
        """Give the job another rate everywhere."""

    def clear(self, job: str) -> None:
        """Leave the job to each process again."""


def steer_job(
    action: str, job: str, rate: str, fleet: FleetSettings, recruiter: Recruiter, *, sure: bool
) -> str:
    """Do an admin's action with a job.

    Arguments:
        action: pause, resume, rate or clear, for the whole fleet; run or dry_run, in this process.
        job: its name.
        rate: as typed.
        sure: whether the admin has confirmed a pause.

    Returns: a sentence that says what was done. Raises: RefusedError.
    """
    if action == "pause" and not sure:
        raise RefusedError("nothing was paused: confirm the pause first")
    shown = visible(job)
    try:
        if action == "pause":
            fleet.pause(job)
            return f"{shown} is paused; {_RIDE}"
        if action == "resume":
            fleet.resume(job)
            return f"{shown} is resumed; {_RIDE}"
        if action == "rate":
            value = _rate(rate)
            fleet.set_rate(job, value)
            return f"the rate of {shown} is {rate_text(value)}; {_RIDE}"
        if action == "clear":
            fleet.clear(job)
            return f"{shown} has its own settings again; {_RIDE}"
        if action in ("run", "dry_run"):
            return _perform(action, job, recruiter)
    except RefusedError:
        raise
    except ConfigurationError as error:
        raise RefusedError(visible(error, 300)) from error
    except Exception as error:
        logger.warning("the dashboard's %s of a job failed: %s", action, type(error).__name__)
        raise RefusedError(f"{action} of {shown} failed: {type(error).__name__}") from error
    raise RefusedError("this action is unknown: give pause, resume, rate, clear, run or dry_run")


def steer_dead(action: str, watched: Watched, key: str, *, sure: bool) -> str:
    """Put dead items back, or forget them.

    Arguments:
        action: revive or discard.
        watched: the structure.
        key: of the item, or "all".
        sure: whether the admin has confirmed to forget.

    Returns: a sentence that says what was done. Raises: RefusedError.
    """
    if action not in ("revive", "discard"):
        raise RefusedError("this action is unknown: give revive or discard")
    if action == "discard" and not sure:
        raise RefusedError("nothing was forgotten: tick the box beside the button first")
    if watched.dead is None:
        raise RefusedError(
            f"the {visible(watched.kind)} {visible(watched.name)} keeps no dead items"
        )
    try:
        count = sum(_apply(box, action, key) for box in _boxes(watched))
    except Exception as error:
        logger.warning("the dashboard's %s of dead items failed: %s", action, type(error).__name__)
        raise RefusedError(f"{action} failed: {type(error).__name__}") from error
    if not count:
        raise RefusedError("nothing was done: no such item is dead any more")
    what = "put back" if action == "revive" else "forgotten for good"
    return f"{count} item{'' if count == 1 else 's'} of {visible(watched.name)} {what}"


def _boxes(watched: Watched) -> Iterator[SetsAside]:
    if watched.dead is not None:
        for _, box in watched.dead():
            yield box


def _apply(box: SetsAside, action: str, key: str) -> int:
    change = box.revive if action == "revive" else box.discard
    exact = exact_item(key)
    if exact is not None:
        return int(change(exact))
    if key != "all":
        looked_at = map(member_of, listed(box, MOST_AT_ONCE, _LARGEST_SEARCH_BYTES))
        found = [each for each in looked_at if item_key(each) == key]
        return int(change(*found)) if found else 0
    done = 0
    # Large items come a few at a time, and a finished item is not listed again.
    while done < MOST_AT_ONCE:
        members = [member_of(each) for each in listed(box, MOST_AT_ONCE - done)]
        changed = int(change(*members)) if members else 0
        if not changed:
            break
        done += changed
    return done


def _rate(text: str) -> float:
    try:
        # float() also takes other scripts' digits and 1_0, which few people would read in the same
        # way.
        value = float(text) if text.isascii() and "_" not in text else float("nan")
    except ValueError:
        value = float("nan")
    if not 0.0 < value <= 1.0:
        raise RefusedError(f"{visible(text, 20)!r} is no rate: give a number above 0, at most 1")
    return value


def _perform(action: str, job: str, recruiter: Recruiter) -> str:
    shown = visible(job)
    if job not in recruiter.jobs():
        raise RefusedError(f"{shown} is not installed in this process, so it cannot run here")
    if action == "dry_run":
        return f"{shown}: {would_handle(recruiter.jobs()[job], recruiter.dry_run(job))} now"
    before = recruiter.stats()["jobs"][job]["items"]
    outcome = recruiter.perform(job)
    items = recruiter.stats()["jobs"][job]["items"] - before
    if outcome is Outcome.FAILED:
        raise RefusedError(f"one slice of {shown} failed; the log says why")
    if outcome is Outcome.OUT_OF_TIME:
        raise RefusedError(
            f"one slice of {shown} was too short to handle anything; install the job with longer"
            " slices (seconds=)"
        )
    unit = recruiter.jobs()[job].unit
    return f"one slice of {shown}: {spoken(outcome.value)}, {counted(items, unit)}"
