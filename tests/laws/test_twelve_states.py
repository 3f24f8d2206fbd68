"""Twelve states of an application of real processes, as `status`, `explain` and the page tell them.

For each: what, where, since when, what to do next, and nothing that is false; and the alerts that
promtool fires, as text, if the processes' own metrics go on like that for 40 minutes. Each look
waits until the surface shows it; how soon they show it is bounded by the intervals, and by no busy
machine.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.alerts import alerts_of, find_program
from support.broken_fleet import GROWING, WATCH_SECONDS, BrokenFleet, Surfaces
from support.servers import RedisServer
from workstealing.dashboard.fleet_state import (
    AWAY,
    DENIED,
    FAILED,
    FULL,
    PAUSED,
    SHORT_LIVED,
    STEPS,
)
from workstealing.metrics.shared_settings import SharedSettings

pytestmark = [pytest.mark.slow, pytest.mark.real]

HOST = socket.gethostname()
CLOCK = r"\d\d:\d\d:\d\d UTC"
WELL = (
    *("Nothing is wrong", "Nothing is known to be wrong", "every job keeps up"),
    "not been reached for 0 s",
)
ALL_WELL = ("keeps up with its garbage", "Nothing is wrong: every job keeps up", "| yes |")


@dataclass(frozen=True)
class State:
    """A state, and what must be said of it.

    Fields: break_: breaks a fleet that runs; hour: of which jobs the hour before was otherwise;
    start: the environment of the processes; says: patterns that each surface for people has: what,
    where, since when, what next; never: texts that none has; keeps_up: the verdict of each job, in
    the order of the names carts, leases, mail; light: the page's; metric: one that is above 0;
    alerts: patterns of alerts that fire if the state lasts, and no alert of anything else does.
    """

    break_: Callable[[BrokenFleet], None] = lambda fleet: None
    hour: dict[str, Any] = field(default_factory=dict)
    start: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = WELL
    keeps_up: tuple[str, str, str] = ("yes", "yes", "yes")
    light: str = "bad"
    metric: str = ""
    alerts: tuple[str, ...] = ()


def deny(fleet: BrokenFleet) -> None:
    """Take the rights of the leases' user."""
    fleet.leases.client().execute_command("ACL", "SETUSER", "app", "-@all", "+@connection")


def lose_settings(fleet: BrokenFleet) -> None:
    """Empty the ledger's server once a process has followed a setting."""
    client = fleet.ledger.client()
    SharedSettings(client).set_rate("carts", 0.01)
    fleet.until(lambda seen: bool(re.search(r"carts\W+0\.01\W", seen.status)))
    client.flushall()


def stop_all(fleet: BrokenFleet) -> None:
    """Stop all servers, after somebody has looked."""
    for each in (fleet.leases, fleet.carts, fleet.ledger):
        each.stop()


NEXT = {kind: re.escape(step) for kind, step in STEPS.items()}
STATES = {
    "healthy": State(says=(), never=("not been reached", "! ", "next:", "does not"), light="good"),
    "acl": State(
        deny,
        says=(
            r"slices failed, NoPermissionError",
            rf"last on {HOST} at {CLOCK}",
            NEXT[DENIED],
        ),
        keeps_up=("yes", "NO", "yes"),
        metric='workstealing_errors_total{error="NoPermissionError",job_name="leases"}',
        alerts=(
            r'ManyFailures".* job_name="leases".* `workstealing status` when and where last',
            r'CannotKeepUp".* job_name="leases"',
        ),
    ),
    "raises": State(
        start={"FLEET_STATE": "raises"},
        says=(rf"slices failed, ValueError.*, last on {HOST} at {CLOCK}", NEXT[FAILED]),
        keeps_up=("yes", "yes", "NO"),
        metric='workstealing_errors_total{error="ValueError",job_name="mail"}',
        alerts=(r'ManyFailures".* job_name="mail".* summary="100% of the slices of mail fail"',),
    ),
    "rate": State(
        lambda fleet: fleet.fill_leases(),
        hour={"leases": GROWING},
        says=(r"oldest garbage \d+ min old", r"a rate of 0\.\d+ would do \(it has 0\.05\)"),
        keeps_up=("yes", "NO", "yes"),
        metric='workstealing_backlog{job_name="leases"}',
        alerts=(r'OldGarbage".* job_name="leases".* summary="garbage of leases is \d+m .*old"',),
    ),
    "stuck": State(
        start={"FLEET_STATE": "stuck"},
        says=(
            rf"a slice has been running for \d+ s on {HOST}, process \d+, since {CLOCK}",
            r"py-spy dump --pid \d+ shows where",
        ),
        never=(*WELL, *ALL_WELL),
        keeps_up=("?", "?", "?"),
        metric='workstealing_slice_running_seconds{job_name="mail"}',
        alerts=(r'SliceStuck".* job_name="mail".* has been running for 40m',),
    ),
    "one down": State(
        lambda fleet: fleet.leases.stop(),
        says=(
            r"{leases} has not been reached for \d+ s",
            rf"since {CLOCK}, by 2 processes on {HOST}; its job rests: leases",
            NEXT[AWAY],
        ),
        keeps_up=("yes", "?", "yes"),
        metric='workstealing_server_unreached_seconds{server="{leases}"}',
        alerts=(
            r'Unreached".* job_name="leases".* {leases} does not answer, for 4\dm',
            r'BreakerOpen".* job_name="leases"',
        ),
    ),
    "all down": State(
        stop_all,
        says=(
            r"{ledger} does not answer \(ConnectionError.*\); nothing is known of the ledger",
            r"{leases} does not answer \(ConnectionError\); nothing is known of leases",
            r"{carts} does not answer \(ConnectionError\); nothing is known of carts",
            NEXT[AWAY],
        ),
        never=(*WELL, *ALL_WELL, "without callers", "no ledger has figures"),
        keeps_up=("?", "?", "?"),
        metric='workstealing_unsent_seconds{receiver="the ledger default"}',
        alerts=(
            r'NotReported".* receiver="the ledger default".* has taken no counts for 4\dm',
            r'Unreached".* job_name="leases"',
            r'Unreached".* job_name="carts"',
        ),
    ),
    "ledger full": State(
        lambda fleet: fleet.ledger.client().config_set("maxmemory", 1),
        says=(
            rf"the fleet is silent: all 2 processes have not reported for \d+ s, since {CLOCK}",
            r"the server {ledger} is full \(.*\) and refuses reports: OutOfMemory",
            NEXT[FULL],
        ),
        never=(*WELL, *ALL_WELL),
        keeps_up=("?", "?", "?"),
        metric='workstealing_unsent_seconds{receiver="the ledger default"}',
        alerts=(r'NotReported".* receiver="the ledger default".* has taken no counts for 4\dm',),
    ),
    "restarts": State(
        lambda fleet: fleet.start(1, FLEET_STATE="restarts"),
        says=(
            rf"\d+ processes on {HOST} fell silent within a minute of their start",
            rf"the last one at {CLOCK}: they are killed, or crash",
            NEXT[SHORT_LIVED],
        ),
    ),
    "ahead": State(
        lambda fleet: fleet.start(1, CLOCK_AHEAD="3600"),
        says=(),
        never=("not been reached", "! ", "next:", "does not", "1 h", "60 min ago"),
        light="good",
    ),
    "flushed": State(
        lose_settings,
        says=(
            rf"the fleet's settings were lost at {CLOCK}, and nobody removed them",
            r"carts had the rate 0\.01",
            r"the ledger is at {ledger}",
            r"set them again, or clear a job's to confirm",
        ),
        keeps_up=("?", "?", "?"),
    ),
    "paused": State(
        lambda fleet: SharedSettings(fleet.ledger.client(), user="ann").pause("carts"),
        says=(rf"it is paused in the whole fleet since {CLOCK}, by ann on {HOST}", NEXT[PAUSED]),
        never=("every job keeps up", "not been reached for 0 s"),
        keeps_up=("?", "yes", "yes"),
        light="dim",
        metric='workstealing_paused{job_name="carts"}',
    ),
}


CONCERNED = r'(?:job_name|receiver)="([^"]+)"'
RUNBOOK = re.compile(r'runbook_url="[^"]+/docs/runbook\.md#workstealing\w+"')


@pytest.fixture
def promtool() -> str:
    """Prometheus' promtool."""
    return find_program("promtool", "fetch_promtool.sh")


@pytest.fixture
def fleet(start_redis: Callable[..., RedisServer], tmp_path: Path) -> Iterator[BrokenFleet]:
    """A fleet whose processes end with the test."""
    fleet = BrokenFleet(start_redis, tmp_path)
    yield fleet
    fleet.stop()


def verdicts(status: str) -> tuple[str, ...]:
    """Return the last column of the table of jobs: by name, carts, leases, mail."""
    # The table follows the headline.
    table = status.split("\n\n")[1:2]
    rows = re.findall(r"^(carts|leases|mail) .* (\S+)$", "".join(table), re.M)
    return tuple(verdict for _, verdict in sorted(rows))


def filled(text: str, fleet: BrokenFleet) -> str:
    """Return a text with the servers' addresses for their names."""
    for each in ("ledger", "leases", "carts"):
        text = text.replace(f"{{{each}}}", fleet.address(getattr(fleet, each)))
    return text


def missing(state: State, seen: Surfaces, fleet: BrokenFleet) -> list[str]:
    """Return what the surfaces do not say, or say although it is false."""
    found = [
        f"{surface} lacks {pattern}"
        for surface, text in seen.told().items()
        for pattern in state.says
        if not re.search(filled(pattern, fleet), text)
    ]
    found += [
        f"{surface} has {text!r}"
        for surface, said in seen.told().items()
        for text in state.never
        if text in said
    ]
    if verdicts(seen.status) != state.keeps_up:
        found.append(f"verdicts {verdicts(seen.status)}")
    if seen.light != state.light:
        found.append(f"light {seen.light}")
    if state.metric:
        value = re.search(rf"^{re.escape(filled(state.metric, fleet))} (\S+)$", seen.metrics, re.M)
        if value is None or not float(value[1]) > 0.0:
            found.append(f"metric {state.metric}")
    return found


def amiss(state: State, fired: list[str], fleet: BrokenFleet) -> list[str]:
    """Return what the alerts do not say, if the state lasts, or say of something else."""
    wanted = [filled(each, fleet) for each in state.alerts]
    found = [each for each in wanted if not any(re.search(each, text) for text in fired)]
    concerned = {each for pattern in state.alerts for each in re.findall(CONCERNED, pattern)}
    others = [each for each in fired if not concerned.issuperset(re.findall(CONCERNED, each))]
    return [*found, *others, *(each for each in fired if not RUNBOOK.search(each))]


def enlisted(metrics: str) -> float:
    """Return how many callers the fleet has had."""
    return sum(
        float(each) for each in re.findall(r"^workstealing_enlisted_total (\S+)", metrics, re.M)
    )


@pytest.mark.parametrize("name", STATES)
def test_what_people_see_is_true(
    fleet: BrokenFleet, name: str, promtool: str, tmp_path: Path
) -> None:
    state = STATES[name]
    fleet.write_hour(**state.hour)
    fleet.start(2, **state.start)
    if not state.start:
        # The page has seen it work: who looks at a state has looked before.
        fleet.until(lambda seen: "2 processes reported" in seen.status)
    state.break_(fleet)
    looks = {"CLOCK_AHEAD": "3600"} if name == "ahead" else {}
    seen = fleet.until(lambda seen: not missing(state, seen, fleet), **looks)
    assert missing(state, seen, fleet) == [], "\n\n".join(seen.told().values())
    latest = time.monotonic() + WATCH_SECONDS
    while True:
        after = fleet.metrics()
        fired = alerts_of(promtool, tmp_path, seen.metrics, after)
        wrong = amiss(state, fired, fleet)
        # Where no alert fires, the fleet has to go on meanwhile, or nothing is shown.
        is_shown = bool(state.alerts) or enlisted(after) > enlisted(seen.metrics)
        if (is_shown and not wrong) or time.monotonic() > latest:
            break
        time.sleep(0.5)
    assert is_shown
    assert wrong == [], "\n".join(fired)
