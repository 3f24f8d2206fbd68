"""The fleet's present state: stuck slices, servers out of reach, silence, the age of figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError

from workstealing.cli.explain import _circumstances
from workstealing.cli.status import as_dict, as_text, complaints, headline, is_well
from workstealing.dashboard.figures import (
    OwnMinutes,
    covered_seconds,
    job_figures,
    recent_of,
    window,
)
from workstealing.dashboard.fleet_state import (
    AWAY,
    DENIED,
    FULL,
    LOGIN,
    SHORT_LIVED,
    SILENT,
    STEPS,
    WAY,
    Refusals,
    Why,
    fleet_state,
    server_of_client,
    then,
    time_of_day,
)
from workstealing.dashboard.presenting import page
from workstealing.dashboard.queries import Queries, Snapshot
from workstealing.dashboard.watched import Watched
from workstealing.metrics.events import FleetEvent
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import (
    Away,
    JobMinute,
    Minute,
    Process,
    Running,
    parsed_processes,
    process_text,
)
from workstealing.recruiting import FunctionJob, Recruiter
from workstealing.recruiting.explaining import explain
from workstealing.recruiting.health import Health

PRESENT = 1_763_650_020
NOW = PRESENT + 30.0
SHOP = "10.0.0.7:6380"


def process(pid: int = 1, ago: float = 2.0, **state: Any) -> Process:
    """Return a process that has reported so many seconds ago."""
    return Process("web-1", pid, "1.0", NOW - 3600, NOW - ago, 30.0, **state)


class Fleet:
    """What a ledger answers; each part may be an error."""

    def __init__(self, *reported: Process) -> None:
        job = JobMinute(worked=30, recruited=30, rate=0.01, oldest_seconds=4.0)
        self.minutes: Any = [
            Minute(PRESENT - 60 * ago, 6000, 4, {"tidy": job}, covered=240.0)
            for ago in reversed(range(60))
        ]
        self.reported: Any = list(reported)
        self.settings: Any = {}
        self.watched: list[Watched] = []
        self.refusal: str | None = None
        self.unasked = ""
        self.events: list[FleetEvent] = []
        self.now = NOW
        self.queries = Queries(
            lambda: {"enlisted": 0, "jobs": {}},
            self._ask("minutes"),
            OwnMinutes(),
            self._ask("settings"),
            lambda: self.watched,
            processes=self._ask("reported"),
            server_now=lambda: self.now,
            where="10.0.0.1:6379",
            refusal=lambda: Why(self.refusal, self.unasked),
            events=lambda: self.events,
            # This machine's clock is an hour behind the server's.
            now=lambda: self.now - 3600.0,
        )

    def _ask(self, part: str) -> Callable[[], Any]:
        def ask() -> Any:
            answer = getattr(self, part)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return ask

    def fail(self, error: Exception) -> None:
        """Answer nothing from now on."""
        self.minutes = self.reported = self.settings = error

    def seen(self) -> Snapshot:
        """Return what a page sees now."""
        self.queries.forget()
        return self.queries.snapshot()


def explained(seen: Snapshot) -> list[str]:
    """Return the reasons of `workstealing explain tidy`."""
    (job,) = seen.jobs
    return list(explain(_circumstances("tidy", job, seen, None)).reasons)


def test_a_process_survives_its_text_and_an_older_one_is_read() -> None:
    told = process(running=Running("tidy", NOW - 40.0, 0.25), away=[Away(SHOP, NOW - 9.0, ["a"])])
    older = '{"host": "web-2", "pid": 3, "version": "0.1", "started": 5.0}'
    assert parsed_processes([process_text(told), older]) == [
        told,
        Process("web-2", 3, "0.1", 5.0),
    ]
    assert not Process("web-2", 3, "0.1", 5.0).is_silent(NOW)
    many = process(away=[Away(f"10.0.0.{n}:1", 0.0, ["j"] * 100) for n in range(100)])
    (read,) = parsed_processes([process_text(many)])
    assert (len(read.away), len(read.away[0].jobs)) == (8, 20)


def test_all_is_well() -> None:
    seen = Fleet(process(1), process(2)).seen()
    assert (seen.processes, seen.warnings, seen.old_seconds, is_well(seen)) == (2, [], None, True)
    shown = page(seen, "default", "viewer")
    assert (shown["light"], shown["old"], shown["source"]) == (
        "good",
        False,
        "fleet of 2 processes",
    )


def test_processes_are_those_that_report() -> None:
    """300 restarts within a minute leave 300 processes on the list, and four that report."""
    seen = Fleet(*(process(pid) for pid in range(4)), *(process(p, 90.0) for p in range(4, 304)))
    shown = seen.seen()
    assert (shown.processes, len(shown.state.silent), is_well(shown)) == (4, 300, True)
    assert page(shown, "default", "viewer")["source"] == "fleet of 4 processes, 300 silent"
    assert headline(shown).startswith("4 processes reported in the last minute (4 on web-1, 1.0)")
    assert "300 have fallen silent" in headline(shown)


def test_a_stuck_slice_has_host_process_job_and_time() -> None:
    seen = Fleet(process(7, running=Running("tidy", NOW - 40.0, 0.25)), process(8)).seen()
    said = (
        "a slice has been running for 40 s on web-1, process 7, since 14:46:50 UTC: nothing else"
        " runs there; py-spy dump --pid 7 shows where it hangs"
    )
    assert complaints(seen) == [f"tidy: {said}"]
    assert said in explained(seen)
    assert page(seen, "default", "viewer")["alarms"] == [f"tidy: {said}"]
    assert as_dict(seen)["jobs"][0]["stuck"][0]["pid"] == 7


@pytest.mark.parametrize(
    ("running", "stuck"),
    [
        (Running("tidy", NOW - 14.0), False),
        (Running("tidy", NOW - 16.0), True),
        (Running("tidy", NOW - 59.0, 30.0), False),
        (Running("tidy", NOW - 61.0, 30.0), True),
    ],
)
def test_a_slice_that_may_be_long_is_not_stuck(running: Running, stuck: bool) -> None:
    assert bool(fleet_state([process(running=running)], NOW).stuck) is stuck


def test_a_process_that_fell_silent_in_a_slice_is_told_of() -> None:
    """As of one that gunicorn has killed, or whose slice holds the interpreter's lock."""
    lost = process(7, 70.0, running=Running("tidy", NOW - 98.0, 0.25))
    seen = Fleet(lost, process(8)).seen()
    (said,) = complaints(seen)
    assert said == (
        "tidy: a slice had been running for 28 s on web-1, process 7 when that process fell silent,"
        " 70 s ago: it has ended or is held up"
    )


def test_one_line_for_one_dead_server_and_its_jobs_keep_up_with_nothing_known() -> None:
    away = [Away(SHOP, NOW - 40.0, ["sweep", "tidy"], 3)]
    seen = Fleet(process(1, away=away), process(2, away=away), process(3)).seen()
    (job,) = seen.jobs
    assert (job.keeps_up, job.problems) == (None, [])
    assert job.why == f"{SHOP} has not been reached for 40 s"
    line = (
        f"{SHOP} has not been reached for 40 s, since 14:46:50 UTC, by 2 processes on web-1; its"
        f" jobs rest: sweep, tidy{then(AWAY)}"
    )
    assert complaints(seen) == [line]
    assert page(seen, "default", "viewer")["alarms"] == [line]
    first = explained(seen)[0]
    assert first.startswith(f"its breaker is open: {SHOP} has not been reached for 40 s")
    assert explained(seen)[-1].endswith(f"{SHOP} has not been reached for 40 s")
    # At once it is unknown; a fault of a moment is no alarm, nor is one that nobody tried again.
    for fault in (Away(SHOP, NOW - 1.0, ["tidy"], 5), Away(SHOP, NOW - 59.0, ["tidy"], 1)):
        soon = Fleet(process(1, away=[fault])).seen()
        assert (soon.jobs[0].keeps_up, soon.warnings) == (None, [])
    late = Fleet(process(1, away=[Away(SHOP, NOW - 61.0, ["tidy"], 1)])).seen()
    assert len(late.warnings) == 1
    # It is reached again: the minute that remembers the outage says nothing any more.
    fleet = Fleet(process(1))
    fleet.minutes[-1].jobs["tidy"].unreached_seconds = 70.0
    assert (fleet.seen().jobs[0].keeps_up, is_well(fleet.seen())) == (True, True)


def test_structures_of_a_dead_server_are_one_line_and_are_asked_once() -> None:
    asked: list[str] = []

    def ask(name: str) -> Callable[[], int]:
        def size() -> int:
            asked.append(name)
            raise RedisConnectionError("refused")

        return size

    fleet = Fleet(process(1))
    fleet.watched = [
        Watched(name, "volatile hashes", ask(name), job=name, server=SHOP) for name in ("tidy", "b")
    ]
    seen = fleet.seen()
    assert asked == ["tidy"]
    line = f"{SHOP} does not answer (ConnectionError); nothing is known of tidy, b{then(AWAY)}"
    assert complaints(seen) == [line]
    assert page(seen, "default", "viewer")["alarms"] == [line]
    assert (seen.jobs[0].keeps_up, seen.jobs[0].why) == (None, f"{SHOP} does not answer")


def test_a_server_that_refuses_a_password_is_not_away() -> None:
    def ask() -> int:
        raise AuthenticationError("invalid username-password pair or user is disabled.")

    fleet = Fleet(process(1))
    fleet.watched = [Watched("tidy", "volatile hashes", ask, job="tidy", server=SHOP)]
    line = f"{SHOP} refuses the name or the password (AuthenticationError); nothing is known of"
    assert complaints(fleet.seen()) == [f"{line} tidy{then(LOGIN)}"]


def test_a_ledger_that_is_away_leaves_its_last_figures_as_old_ones() -> None:
    fleet = Fleet(process(1), process(2))
    assert fleet.seen().old_seconds is None
    fleet.fail(RedisConnectionError("user:secret@10.0.0.1"))
    fleet.now += 60.0
    seen = fleet.seen()
    assert (len(seen.jobs), seen.is_fleet, seen.fault) == (1, True, "ConnectionError")
    assert (seen.heard, seen.old_seconds) == (NOW - 2.0, 62.0)
    shown = page(seen, "default", "viewer")
    assert (shown["old"], shown["source"]) == (True, "last report 62 s ago, at 14:47:28 UTC")
    assert shown["light"] == "bad"
    said = "10.0.0.1:6379 does not answer (ConnectionError); nothing is known of the ledger"
    line = f"{said}{then(AWAY)}"
    assert shown["alarms"][0] == line
    assert "secret" not in str(shown)
    assert headline(seen).startswith("the last report came 62 s ago, at 14:47:28 UTC")
    # The same when a right is missing, of which the address says nothing.
    fleet.fail(NoPermissionError("this user has no permissions"))
    seen = fleet.seen()
    assert seen.old_seconds is not None
    # One cause is one line, and says what to do.
    assert seen.troubles == [f"the ledger could not be asked: NoPermissionError{then(DENIED)}"]


def test_a_ledger_that_refuses_has_answered() -> None:
    fleet = Fleet()
    fleet.fail(NoPermissionError("this user has no permissions"))
    seen = fleet.seen()
    assert headline(seen).startswith("the ledger could not be read: these figures are of this")
    assert page(seen, "default", "viewer")["source"] == "this process only: the ledger is not read"
    fleet.fail(RedisConnectionError("refused"))
    assert headline(fleet.seen()).startswith("the ledger did not answer: these figures are of this")


def test_while_the_ledger_is_away_its_last_figures_grow_no_older() -> None:
    """Nobody knows whether a slice runs on, or a server is still out of reach."""
    running, away = Running("tidy", NOW - 40.0), [Away(SHOP, NOW - 50.0, ["sweep"], 3)]
    fleet = Fleet(process(1, running=running), process(2, away=away))
    fleet.seen()
    fleet.fail(RedisConnectionError("refused"))
    fleet.now += 600.0
    seen = fleet.seen()
    assert seen.state.stuck[0].seconds == 40.0
    assert [each for each in seen.warnings if "has not been reached for 50 s" in each]


def test_a_ledger_that_was_emptied_is_known_to_have_had_figures() -> None:
    fleet = Fleet(process(1), process(2))
    fleet.seen()
    fleet.minutes, fleet.reported, fleet.now = [], [], NOW + 40.0
    line = (
        "the ledger at 10.0.0.1:6379 has no figures any more: 2 processes had reported by"
        f" 14:47:28 UTC, and none has since: was the server emptied?{then(SILENT)}"
    )
    seen = fleet.seen()
    assert (complaints(seen), page(seen, "default", "viewer")["light"]) == ([line], "bad")
    # An hour later all that it had has ended by itself.
    fleet.now = NOW + 3600.0
    assert complaints(fleet.seen()) == []


def test_silent_processes_among_others_are_named() -> None:
    fleet = Fleet(process(1), process(2, 65.0), process(3, 70.0))
    seen = fleet.seen()
    line = (
        "2 processes on web-1 are silent, the last report came at 14:46:25 UTC: 2, 3; they were"
        f" killed, hang or have no way to the ledger{then(SILENT)}"
    )
    # A deployment may kill them on purpose: no alarm.
    assert (seen.notes, complaints(seen), is_well(seen)) == ([line], [], True)
    assert f"\n\n{line}\n" in f"{as_text(seen)}\n"
    assert line in page(seen, "default", "viewer")["processes"]["text"]
    fleet.refusal = "the server is full: OutOfMemory"
    (alarm,) = complaints(fleet.seen())
    assert alarm == (
        "2 processes on web-1 are silent, the last report came at 14:46:25 UTC: 2, 3: the server is"
        " full: OutOfMemory"
    )


def test_a_ledger_that_nobody_has_reached_says_why_if_it_is_known() -> None:
    fleet = Fleet()
    fleet.minutes = []
    assert complaints(fleet.seen()) == []
    fleet.refusal = "the server is full: OutOfMemory"
    assert complaints(fleet.seen()) == [
        "no process has reported to the ledger: the server is full: OutOfMemory"
    ]


def emptied(ago: float) -> FleetEvent:
    return FleetEvent("emptied", "", "", NOW - ago, NOW - ago, ("web-1",), "", 1)


def test_an_emptied_ledger_says_since_when_it_has_figures() -> None:
    fleet = Fleet(process(1))
    fleet.minutes, fleet.events = fleet.minutes[-2:], [emptied(90.0)]
    seen = fleet.seen()
    at = time_of_day(NOW - 90.0)
    line = f"the ledger was emptied at {at}, and has figures since then"
    assert (seen.notes, complaints(seen)) == ([line], [])
    (job,) = seen.jobs
    assert (job.just_started, job.why) == (True, f"nothing to say yet: {line}")
    assert line in page(seen, "default", "viewer")["processes"]["text"]
    # Its processes may have been silent for a while.
    fleet.events = [emptied(1800.0)]
    seen = fleet.seen()
    since = time_of_day(fleet.minutes[0].minute)
    assert seen.notes == [
        f"the ledger was emptied at {time_of_day(NOW - 1800.0)}, and has figures since {since}"
    ]


def test_a_ledger_that_was_emptied_long_ago_has_a_whole_hour_again() -> None:
    fleet = Fleet(process(1))
    fleet.events = [emptied(3700.0)]
    seen = fleet.seen()
    assert seen.notes == []
    # A job that was installed since has indeed just started.
    fleet.minutes, fleet.events = fleet.minutes[-2:], []
    (job,) = fleet.seen().jobs
    assert job.why == "just started: nothing to say yet"


def test_a_job_that_starts_after_the_emptying_has_just_started() -> None:
    fleet = Fleet(process(1))
    fleet.minutes = fleet.minutes[-30:]
    for each in fleet.minutes[:-2]:
        each.jobs = {"other": each.jobs["tidy"]}
    fleet.events = [emptied(1790.0)]
    assert {job.name: job.why for job in fleet.seen().jobs}["tidy"] == (
        "just started: nothing to say yet"
    )


def test_a_server_that_answers_here_is_not_to_be_started() -> None:
    fleet = Fleet(process(1, away=[Away(SHOP, NOW - 40.0, ["tidy"], 3)]))
    fleet.watched = [Watched("tidy", "volatile hashes", lambda: 3, job="tidy", server=SHOP)]
    (line,) = complaints(fleet.seen())
    assert line.endswith(f"; its job rests: tidy; it answers from here{then(WAY)}")


def test_a_silent_fleet_is_said_with_its_reason() -> None:
    fleet = Fleet(process(1, 65.0), process(2, 70.0))
    fleet.refusal = "the server is full: OutOfMemory"
    seen = fleet.seen()
    assert (seen.processes, seen.old_seconds) == (0, 65.0)
    (line,) = complaints(seen)
    assert line == (
        "the fleet is silent: all 2 processes have not reported for 65 s, since 14:46:25 UTC: the"
        " server is full: OutOfMemory"
    )
    assert as_text(seen).startswith("the last report came 65 s ago, at 14:46:25 UTC")
    fleet.refusal = None
    assert "their logs say it" in complaints(fleet.seen())[0]
    # Processes that have ended in order are no alarm, and their figures are of then.
    gone = Fleet().seen()
    assert (gone.warnings, gone.processes, gone.old_seconds) == ([], 0, 0.0)
    assert page(gone, "default", "viewer")["light"] == "dim"


def test_a_reason_that_could_not_be_asked_is_said() -> None:
    """Nobody may think that the server has been asked, and refuses nothing."""
    unknown = "whether the ledger's server refuses reports is not known: INFO: NoPermissionError"
    silent = Fleet(process(1, 65.0), process(2, 70.0))
    silent.unasked = "INFO: NoPermissionError"
    (line,) = complaints(silent.seen())
    assert f"their logs say it; {unknown}{then(SILENT)}" in line
    some = Fleet(process(1), process(2, 65.0))
    some.unasked = "INFO: NoPermissionError"
    (line,) = some.seen().notes
    assert line.endswith(f"no way to the ledger; {unknown}{then(SILENT)}")
    nobody = Fleet()
    nobody.minutes, nobody.unasked = [], "INFO: NoPermissionError"
    seen = nobody.seen()
    assert (seen.notes, complaints(seen)) == ([unknown], [])
    # It is asked where there is something to explain.
    well = Fleet(process(1))
    well.unasked = "INFO: NoPermissionError"
    assert well.seen().notes == []


def test_a_question_that_fails_is_named(start_redis: Any) -> None:
    server = start_redis(7)
    rule = ("on", ">secret", "+@all", "~*")
    client = server.client()
    client.execute_command("ACL", "SETUSER", "page", *rule, "-acl", "-info")
    page = server.client(username="page", password="secret")
    asking = Refusals(page, "shop")
    both = Why(None, "INFO: NoPermissionError, ACL LOG: NoPermissionError")
    assert (asking(), asking()) == (both, both)
    # Each question that is refused is a line of the server's log, so it is asked once.
    assert [int(each["count"]) for each in client.acl_log()] == [1, 1]
    server.kill()
    assert "INFO: ConnectionError" in Refusals(client, "shop")().unasked


def test_a_cluster_is_asked(cluster: Any) -> None:
    assert Refusals(cluster.client())() == Why()


def test_a_full_server_says_so(start_redis: Any) -> None:
    client = start_redis(7).client()
    assert Refusals(client)() == Why()
    client.config_set("maxmemory", 1000)
    said = Refusals(client)().known
    assert said is not None
    assert said.startswith(f"the server {server_of_client(client)} is full (")
    assert said.endswith("noeviction) and refuses reports: OutOfMemory" + then(FULL))


def test_a_user_whose_reports_are_refused_is_named(start_redis: Any) -> None:
    server = start_redis(7)
    client = server.client()
    rule = ("on", ">secret", "+@all", "resetkeys")
    client.execute_command("ACL", "SETUSER", "shop", *rule, "~shop:*")
    url = server.url.replace("://", "://shop:secret@", 1)
    recruiter = Recruiter()
    recruiter.install(FunctionJob(lambda slice: 0, name="tidy"), rate=0.5)
    ledger = Ledger(redis.Redis.from_url(url), "shop")
    recruiter.add_hook(ledger)
    ledger.on_enlisted(600)
    assert ledger.flush(5.0) is False
    # Other refusals are none of the ledger's, and another ledger's is none of this one.
    with pytest.raises(NoPermissionError):
        redis.Redis.from_url(url).get("another")
    assert Refusals(client, "sho")().known is None
    said = Refusals(client, "shop")().known
    assert said is not None
    found = re.fullmatch(
        rf"the server {server_of_client(client)} refuses keys of this ledger to the user shop, last"
        rf" \d+ s ago, to 127\.0\.0\.1{re.escape(then(DENIED))}",
        said,
    )
    assert found is not None, said
    # Whoever may not ask for it knows nothing, and asks once, because that is a refusal, too.
    client.execute_command("ACL", "SETUSER", "page", *rule, "~*", "-acl")
    asking = Refusals(redis.Redis.from_url(url.replace("shop:", "page:")), "shop")
    nothing = Why(None, "ACL LOG: NoPermissionError")
    assert (asking(), asking()) == (nothing, nothing)
    logged = [each for each in client.acl_log() if each["username"] in ("page", b"page")]
    assert [int(each["count"]) for each in logged] == [1]
    ledger.close()


def test_a_minutes_edge_shows_no_plunge() -> None:
    """Four processes report every ten seconds: at :04 one of them has."""
    fleet = Fleet(*(process(pid) for pid in range(4)))
    fleet.now = PRESENT + 4.0
    for each in fleet.reported:
        each.reported = fleet.now - 3.0
    fleet.minutes[-1] = Minute(PRESENT, 250, 1, {}, covered=10.0)
    seen = fleet.seen()
    assert seen.processes == 4
    assert seen.enlisted_per_second == pytest.approx(100.0)
    assert seen.traffic[-2:] == [100.0, None]
    # The first minute of all: what is there is all that is known.
    fleet.minutes = [Minute(PRESENT, 250, 1, {}, covered=10.0)]
    assert fleet.seen().enlisted_per_second == pytest.approx(25.0)


def test_counts_that_waited_are_of_the_time_that_they_cover() -> None:
    """Five minutes of an outage arrive at once, and are no peak."""
    minutes = [
        Minute(PRESENT - 120, 100_000, 4, {}, covered=4 * 360.0),
        Minute(PRESENT - 60, 18_000, 4, {}, covered=240.0),
        Minute(PRESENT, 3_000, 4, {}, covered=40.0),
    ]
    times, slots = window(minutes, NOW)
    covered = covered_seconds(slots, times, NOW)
    assert sum(slot.enlisted for slot in slots[recent_of(slots)] if slot) / covered == (
        pytest.approx(118_000 / 420)
    )


def test_the_callers_of_a_young_fleet_are_of_its_own_time() -> None:
    fleet = Fleet(process(1))
    job = JobMinute(worked=3, recruited=3, rate=0.01)
    fleet.minutes = [
        Minute(PRESENT - 60, 200, 1, {"tidy": job}, covered=10.0),
        Minute(PRESENT, 600, 1, {"tidy": job}, covered=30.0),
    ]
    assert "800 callers enlisted in the fleet in the last 40 s, 20 a second" in explained(
        fleet.seen()
    )
    # Nobody has come for minutes: they count, too.
    fleet.minutes = [Minute(PRESENT - 600, 200, 1, {"tidy": job}, covered=10.0)]
    assert explained(fleet.seen())[0].startswith("200 callers enlisted in the fleet in the last 10")


def test_expected_recruits_are_of_the_processes_that_have_the_job() -> None:
    fleet = Fleet(process(1), process(2))
    for each in fleet.minutes:
        # One process of four has it, and gets hardly any callers.
        each.offered, each.jobs["tidy"].offered = 6_000, 6
    reasons = explained(fleet.seen())
    (said,) = [each for each in reasons if each.startswith("its rate is")]
    assert "360 callers of them, those in processes that have it installed, would bring" in said
    assert "bring about 3.6 recruits" in said


def test_garbage_seen_long_ago_is_not_shown_as_of_now() -> None:
    fleet = Fleet(process(1))
    for each in fleet.minutes[-20:]:
        each.jobs["tidy"] = JobMinute(skipped=1, recruited=1)
    seen = fleet.seen()
    assert seen.jobs[0].seen_ago == 1200.0
    cell = page(seen, "default", "viewer")["jobs"][0]["cells"][1]
    assert cell == {"text": "4 s (20 min ago)", "kind": "old"}
    assert "4 s (20 min ago)" in as_text(seen)


def test_the_health_without_a_server() -> None:
    assert Health(True).without({}) == Health(True)
    assert Health(False, "it fails").without({SHOP: 5.0}) == Health(False, "it fails")
    assert Health(True).without({SHOP: 5.0, "b:1": 90.0}) == Health(
        None, "b:1 and 1 more have not been reached for 90 s"
    )
    local = {"keeps_up": True, "unreached": {SHOP: 3.0}}
    assert job_figures("tidy", [], 1.0, local, None).keeps_up is None


def test_each_step_names_a_section_that_is_there() -> None:
    runbook = (Path(__file__).resolve().parents[2] / "docs" / "runbook.md").read_text().lower()
    for step in STEPS.values():
        for section in re.findall(r"docs/runbook\.md#(\w+)", step):
            assert f"\n### {section}\n" in runbook


def test_nobody_knows_whether_a_stuck_job_keeps_up() -> None:
    """Its last minutes were well, and its slice has not ended since."""
    stuck = process(7, running=Running("tidy", NOW - 40.0, 0.25))
    (job,) = Fleet(stuck, process(8)).seen().jobs
    assert (job.keeps_up, job.why) == (None, "a slice of it does not end")
    other = process(7, running=Running("other", NOW - 40.0, 0.25))
    (job,) = Fleet(other, process(8)).seen().jobs
    assert job.keeps_up is True
    (job,) = Fleet(other).seen().jobs
    why = "every process is held by a slice that does not end"
    assert (job.keeps_up, job.why) == (None, why)


def test_nobody_knows_by_old_figures_whether_a_job_keeps_up() -> None:
    seen = Fleet(process(1, 65.0)).seen()
    (job,) = seen.jobs
    assert (job.keeps_up, job.why) == (None, "the last report came 65 s ago")
    assert page(seen, "default", "viewer")["tiles"][0]["value"] == "\N{EN DASH}"
    assert "nobody knows yet whether it keeps up: the last report came 65 s ago" in explained(seen)


def test_a_server_that_does_not_answer_here_has_been_away_since_its_first_fault() -> None:
    def refuse() -> int:
        raise RedisConnectionError("refused")

    fleet = Fleet(process(1, away=[Away(SHOP, NOW - 40.0, ["tidy"])]))
    fleet.watched = [Watched("tidy", "volatile hashes", refuse, job="tidy", server=SHOP)]
    seen = fleet.seen()
    assert seen.jobs[0].why == f"{SHOP} has not been reached for 40 s"
    assert explained(seen)[0].startswith(
        f"its breaker is open: {SHOP} has not been reached for 40 s"
    )


def test_processes_that_end_as_they_begin_are_an_alarm() -> None:
    """300 restarts are more than 300 silent processes: each lived for seconds."""

    def brief(pid: int) -> Process:
        return Process("web-1", pid, "1.0", NOW - 93.0, NOW - 90.0, 30.0)

    seen = Fleet(process(1), *map(brief, range(2, 302))).seen()
    (line,) = complaints(seen)
    assert line == (
        "300 processes on web-1 fell silent within a minute of their start, the last one at"
        f" 14:46:00 UTC: they are killed, or crash{then(SHORT_LIVED)}"
    )
    assert page(seen, "default", "viewer")["alarms"] == [line]
    assert Fleet(process(1), *map(brief, range(2, 11))).seen().warnings == []
