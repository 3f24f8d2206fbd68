"""Why a job did or did not run lately: one sentence for each reason. No I/O.

A recruiter gives the figures of its process, the command line those of the fleet's ledger. Both ask
`explain`, so that they say the same of the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from workstealing.clock import roughly
from workstealing.recruiting.health import STALE_SECONDS
from workstealing.recruiting.lottery import DISABLED_VARIABLE
from workstealing.recruiting.slice import PERFORMED, Outcome

FLEET = "the fleet"
_QUIET_SECONDS = 60.0
_ERRORS = 3
# A longer slice of another job is not an ordinary one.
_LONG_SECONDS = 1.0
_FEW = 10.0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The figures by which a job's absence or presence is explained.

    Fields: job, its name; place, the scope of the figures, "this process" or FLEET; seconds that
    they cover; installed, the names of the jobs of this process; disabled, whether this process's
    environment switches all jobs off; paused, the scope of its pause, None: no pause;
    unreached_seconds, for how long its server has not been reached, None: its breaker is closed;
    hindered_seconds, the same of something else that it uses; servers, how many it has, None:
    unknown; running, the job of the slice that runs now, None: this job's; running_seconds of that
    slice, None: no slice runs; stuck, a sentence for each slice of it that does not end; unreached,
    the addresses of its servers that were not reached; enlisted, the number of callers; offered,
    those of them in processes that have the job, None: all, or unknown; quiet_seconds in which at
    most lately of them came, None: unknown; rate, None: unknown; adaptive, whether it moves by
    itself; refused, why the fleet's rate is not in force; outcomes, by name; items handled;
    ran_seconds since the last slice, None: unknown; errors, by class, the count and the seconds
    since the last one; keeps_up and why, as of `health.assess`; advice, the end of the sentence if
    it does not keep up: what to do next.
    """

    job: str
    place: str
    seconds: float
    installed: Sequence[str] = ()
    disabled: bool = False
    paused: str | None = None
    unreached_seconds: float | None = None
    hindered_seconds: float | None = None
    servers: int | None = 1
    running: str | None = None
    running_seconds: float | None = None
    stuck: Sequence[str] = ()
    unreached: Sequence[str] = ()
    enlisted: int = 0
    offered: int | None = None
    quiet_seconds: float | None = None
    lately: int = 0
    rate: float | None = None
    adaptive: bool = False
    refused: str | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    items: int = 0
    ran_seconds: float | None = None
    errors: Mapping[str, tuple[int, float | None]] = field(default_factory=dict)
    keeps_up: bool | None = None
    why: str = ""
    advice: str = ""


class Explanation(NamedTuple):
    """Why a job did or did not run lately.

    Fields: job, its name; has_run, whether a slice of it was performed in the last quarter of an
    hour; reasons, one sentence each, the decisive ones first. `str()` of it is text for people.
    """

    job: str
    has_run: bool
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        did = "has run lately" if self.has_run else "has not run lately"
        return "\n".join((f"{self.job} {did}:", *(f"- {each}" for each in self.reasons)))


def explain(of: Circumstances) -> Explanation:
    """Say why a job did or did not run, by the figures of a process or of a fleet. No command."""
    performed = sum(of.outcomes.get(each, 0) for each in PERFORMED)
    said = [*_obstacles(of), *_chances(of), *_outcomes(of, performed)]
    if performed and of.keeps_up:
        said.append("it keeps up with its garbage")
    elif performed and of.keeps_up is None:
        said.append(f"nobody knows yet whether it keeps up: {of.why}")
    elif of.keeps_up is False:
        said.append(f"it does not keep up: {of.why}{of.advice}")
    is_recent = of.ran_seconds is None or of.ran_seconds <= STALE_SECONDS
    return Explanation(of.job, performed > 0 and is_recent, tuple(said))


def server_of(servers: int | None) -> str:
    """Return a job's faulty server in words: a job on a fleet has several, None: nobody knows."""
    if servers is None:
        return "a server of this job"
    return "its server" if servers == 1 else f"one of its {servers} servers"


def _obstacles(of: Circumstances) -> list[str]:
    """Return the states in which nobody serves, whatever the draw says."""
    said = []
    if of.job not in of.installed:
        others = ", ".join(repr(each) for each in of.installed) or "none"
        said.append(
            f"no job {of.job!r} is installed in this process, so none of its callers is recruited"
            f" for it; installed: {others}"
        )
    if of.disabled:
        said.append(f"{DISABLED_VARIABLE} is set in this process, so nobody is recruited in it")
    if of.paused is not None:
        said.append(f"it is paused in {of.paused}, so its recruits are skipped")
    if of.unreached_seconds is not None:
        breaker, rest = "its breaker", "are skipped"
        if of.servers != 1 and not (of.servers is None and len(of.unreached) == 1):
            breaker, rest = "a breaker of it", "leave that one alone"
        server = server_of(of.servers)
        if of.unreached:
            server = " and ".join(of.unreached)
        said.append(
            f"{breaker} is open: {server} has not been reached for"
            f" {roughly(of.unreached_seconds)}, and recruits {rest} until a try succeeds"
        )
    if of.hindered_seconds is not None:
        said.append(
            "its breaker is open: something that it uses besides its server has not been reached"
            f" for {roughly(of.hindered_seconds)}, and recruits are skipped until a try succeeds"
        )
    is_own = of.running in (None, of.job)
    said += of.stuck
    if of.stuck or of.running_seconds is None:
        pass
    elif of.running_seconds < _LONG_SECONDS:
        # The slice of another process has ended since.
        if is_own and of.place != FLEET:
            said.append("a slice of it runs at this moment")
    else:
        said.append(
            f"a slice of {'it' if is_own else f'the job {of.running!r}'} has been running for"
            f" {roughly(of.running_seconds)}, and no other slice begins in its process meanwhile"
        )
    return said


def _chances(of: Circumstances) -> list[str]:
    """Return what the lottery had to draw from, and its rate."""
    covered = f"in {of.place} in the last {roughly(of.seconds)}"
    if not of.enlisted:
        said = [f"nobody has enlisted {covered}: without callers there are no recruits"]
    else:
        pace = of.enlisted / max(of.seconds, 1.0)
        said = [f"{_number(of.enlisted, 'caller')} enlisted {covered}, {pace:.3g} a second"]
        if of.quiet_seconds is not None and of.quiet_seconds >= _QUIET_SECONDS:
            span = roughly(of.quiet_seconds)
            few = f"at most {_number(of.lately, 'caller')} enlisted in the last {span}"
            said.append(few if of.lately else f"nobody has enlisted for at least {span}")
    if of.rate is None:
        return said
    rate = f"its rate{', which moves by itself,' if of.adaptive else ''} is {of.rate:.3g}"
    if not of.rate:
        said.append(f"{rate} now, so nobody is recruited for it")
    else:
        came = sum(of.outcomes.values())
        # The rate may have been another one, or nobody may be drawn: see the obstacles.
        asked = of.enlisted if of.offered is None else of.offered
        brought = f"bring about {asked * of.rate:,.1f} recruits at that rate"
        callers = _number(asked, "caller")
        if asked < of.enlisted:
            callers += " of them, those in processes that have it installed,"
        sum_up = f"; {callers} would {brought}, and {came:,} came" if asked else ""
        each = 1 / of.rate
        share = f"{each:,.0f}" if each >= _FEW else f"{each:.2g}"
        said.append(f"{rate}, one caller in {share}{sum_up}")
    if of.refused is not None:
        said.append(f"the fleet's rate for it is not in force everywhere: {of.refused}")
    return said


def _outcomes(of: Circumstances, performed: int) -> list[str]:
    said = []
    if performed:
        # The figures of a fleet are by the minute.
        most = "at most " if of.place == FLEET else ""
        last = "" if of.ran_seconds is None else f", the last {most}{roughly(of.ran_seconds)} ago"
        said.append(
            f"{_number(performed, 'slice')} of it ran{last}, and handled"
            f" {_number(of.items, 'item')}"
        )
    clauses = {
        Outcome.IDLE: "found nothing to do",
        Outcome.ABORTED: "gave way to another writer",
        Outcome.OUT_OF_TIME: "had no time to finish: if most do, install it with longer slices"
        " (seconds=)",
    }
    for outcome, clause in clauses.items():
        if count := of.outcomes.get(outcome.value, 0):
            said.append(f"{count:,} of {performed:,} slices {clause}")
    if failed := of.outcomes.get(Outcome.FAILED.value, 0):
        said.append(f"{failed:,} of {performed:,} slices failed{_errors(of)}")
    if skipped := of.outcomes.get(Outcome.SKIPPED.value, 0):
        said.append(
            f"{_number(skipped, 'recruit')} {'was' if skipped == 1 else 'were'} skipped: it was"
            " paused or could not begin, its breaker was open, or another slice ran in the process"
        )
    return said


def _errors(of: Circumstances) -> str:
    named = sorted(of.errors.items(), key=lambda each: -each[1][0])[:_ERRORS]
    told = [
        f"{name} {_number(count, 'time')}" + ("" if ago is None else f", last {roughly(ago)} ago")
        for name, (count, ago) in named
    ]
    return f": {'; '.join(told)}" if told else ""


def _number(count: int, unit: str) -> str:
    return f"{count:,} {unit}{'' if count == 1 else 's'}"
