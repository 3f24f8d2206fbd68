"""Twelve states of an application of real processes, as `status`, `explain` and the page tell them.

For each: what, where, since when, what to do next, and nothing that is false. Each look waits until
the surface shows it; how soon they show it is bounded by the intervals, and by no busy machine.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.broken_fleet import GROWING, BrokenFleet, Surfaces
from support.servers import RedisServer
from workstealing.dashboard.next_steps import (
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
    the order of the names carts, leases, mail; light: the page's; metric: one that is above 0.
    """

    break_: Callable[[BrokenFleet], None] = lambda fleet: None
    hour: dict[str, Any] = field(default_factory=dict)
    start: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = WELL
    keeps_up: tuple[str, str, str] = ("yes", "yes", "yes")
    light: str = "bad"
    metric: str = ""


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
    ),
    "raises": State(
        start={"FLEET_STATE": "raises"},
        says=(rf"slices failed, ValueError.*, last on {HOST} at {CLOCK}", NEXT[FAILED]),
        keeps_up=("yes", "yes", "NO"),
        metric='workstealing_errors_total{error="ValueError",job_name="mail"}',
    ),
    "rate": State(
        lambda fleet: fleet.fill_leases(),
        hour={"leases": GROWING},
        says=(r"oldest garbage \d+ min old", r"a rate of 0\.\d+ would do \(it has 0\.05\)"),
        keeps_up=("yes", "NO", "yes"),
        metric='workstealing_backlog{job_name="leases"}',
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


def missing(state: State, seen: Surfaces, fleet: BrokenFleet) -> list[str]:
    """Return what the surfaces do not say, or say although it is false."""
    servers = {each: getattr(fleet, each) for each in ("ledger", "leases", "carts")}
    addresses = {f"{{{name}}}": fleet.address(each) for name, each in servers.items()}

    def filled(text: str) -> str:
        for name, address in addresses.items():
            text = text.replace(name, address)
        return text

    found = [
        f"{surface} lacks {pattern}"
        for surface, text in seen.told().items()
        for pattern in state.says
        if not re.search(filled(pattern), text)
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
        value = re.search(rf"^{re.escape(filled(state.metric))} (\S+)$", seen.metrics, re.M)
        if value is None or not float(value[1]) > 0.0:
            found.append(f"metric {state.metric}")
    return found


@pytest.mark.parametrize("name", STATES)
def test_what_people_see_is_true(fleet: BrokenFleet, name: str) -> None:
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
