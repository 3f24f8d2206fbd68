"""The ranges of the charts: what a page asks for, what it gets, and how often it is asked for."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from support.dashboards import make_app, write_minute, write_processes
from workstealing import Recruiter
from workstealing.dashboard.charts import LINES, RANGES, Charts
from workstealing.dashboard.presenting import selection_of
from workstealing.dashboard.queries import Snapshot
from workstealing.metrics.ledger import read
from workstealing.metrics.minutes import Minute, Process
from workstealing.testing import ManualClock

PLACES = 92
"""A chart has so many places at most."""


def write(client: Any, first: int, last: int, **job: Any) -> int:
    """Write the minutes from so many minutes ago to so many; return the present minute."""
    present = int(client.time()[0]) // 60 * 60
    write_processes(client, Process("web-1", 1, "1.0", present - 60.0 * first))
    for ago in range(last, first + 1):
        fields = {"processes": 3, "enlisted": 6000, "covered": 180_000}
        fields |= {f"{name.replace('_', '.')}:tidy": value for name, value in job.items()}
        write_minute(client, present - 60 * ago, fields)
    return present


def view(app: Any, query: str = "") -> Any:
    return json.loads(app.test_client().get(f"/ws/view.json{query}").text)


def test_a_range_of_three_hours_has_what_the_ledger_keeps(
    never_recruiter: Recruiter, client: Any
) -> None:
    job = {"worked": 30, "failed": 6, "items": 300, "micros": 72_000, "oldest_0": 4.0}
    present = write(client, 150, 0, **job, backlog_0=70)
    charts = view(make_app(never_recruiter, client), "?range=3h")["charts"]
    assert charts["range_text"] == "last 3 hours"
    assert charts["names"] == ["tidy"]
    times = charts["times"]
    assert {late - early for early, late in itertools.pairwise(times)} == {120}
    # From the ledger's first minute on, not from the range's.
    assert present - 151 * 60 <= times[0] <= present - 149 * 60
    assert charts["since"].startswith("The figures begin at ")
    # The last place may be of the present minute alone, whose counts are not over.
    for name, value in (
        *(("lag", 4.0), ("items", 5.0), ("backlog", 70)),
        *(("failures", 6.0), ("slices", 0.002)),
    ):
        assert charts[name][0][1:-1] == [value] * (len(times) - 2), name
    assert charts["traffic"][1:-1] == [100.0] * (len(times) - 2)
    assert charts["processes"][1:-1] == [3] * (len(times) - 2)
    (row,) = charts["rows"]
    assert row["cells"][:3] == ["4 s, at most 4 s", "5, at most 5", "70, at most 70"]


def test_the_hour_has_the_same_lines_without_another_question(
    never_recruiter: Recruiter, client: Any
) -> None:
    write(client, 150, 0, worked=30, failed=6, items=300, micros=72_000)
    charts = view(make_app(never_recruiter, client))["charts"]
    assert charts["range"] == "1h"
    assert len(charts["times"]) == 60
    assert charts["failures"][0][5:55] == [6.0] * 50
    assert charts["slices"][0][5:55] == [0.002] * 50
    assert charts["processes"][5:55] == [3] * 50
    assert charts["processes"][-1] is None


def test_a_young_fleet_fills_the_charts_from_its_first_minute_on(
    never_recruiter: Recruiter, client: Any
) -> None:
    write(client, 20, 0, worked=30)
    app = make_app(never_recruiter, client)
    assert len(view(app)["charts"]["times"]) in (20, 21, 22)
    assert len(view(app, "?range=3h")["charts"]["times"]) in (10, 11, 12)


@pytest.mark.parametrize("name", RANGES)
def test_each_range_has_few_places_up_to_the_present(
    never_recruiter: Recruiter, client: Any, name: str
) -> None:
    oldest = RANGES[name].minutes - RANGES[name].step
    present = write(client, oldest, oldest - 3, worked=30, items=60)
    write(client, 2, 0, worked=30)
    charts = view(make_app(never_recruiter, client), f"?range={name}")["charts"]
    assert charts["range"] == name
    assert 55 <= len(charts["times"]) <= PLACES
    assert charts["times"][-1] + 60 * RANGES[name].step > present
    for line in LINES:
        assert [len(each) for each in charts[line]] == [len(charts["times"])]
    # A gap in the midst is a gap.
    assert charts["traffic"][len(charts["times"]) // 2] is None


def test_the_oldest_range_reads_as_far_back_as_a_ledger_keeps() -> None:
    asked: list[tuple[int, int]] = []
    present = 1_000_000 * 60

    def ask(count: int, end: int) -> list[Minute]:
        asked.append((count, end))
        return [Minute(end - 60 * ago, 1, 1) for ago in range(count, 0, -1)]

    times = [present - 60 * ago for ago in range(59, -1, -1)]
    shown = Snapshot(present + 30.0, True, 1, times, [1.0] * 60, 0.0, [], [], [])
    Charts(lambda: shown, ask).of("23h")
    assert all(count <= 180 for count, _ in asked)
    # No minute is left out or comes twice.
    ends = [end for _, end in asked]
    assert [end - 60 * count for count, end in asked[1:]] == ends[:-1]
    assert ends[-1] == present + 60
    assert sum(count for count, _ in asked) in range(1366, 1381)


def test_a_range_is_asked_for_once_and_stays_while_the_ledger_is_away(
    manual_clock: ManualClock,
) -> None:
    asked: list[int] = []
    faults: list[Exception] = []

    def ask(count: int, end: int) -> list[Minute]:
        asked.append(count)
        if faults:
            raise faults[0]
        return [Minute(end - 60 * ago, 600, 1) for ago in range(count, 0, -1)]

    times = list(range(0, 3600, 60))
    shown = Snapshot(3599.0, True, 1, times, [1.0] * 60, 0.0, [], [], [])
    charts = Charts(lambda: shown, ask, manual_clock)
    first = charts.of("3h")
    assert charts.of("3h") == first
    assert asked == [180]
    manual_clock.advance(31)
    faults.append(ConnectionError("gone"))
    assert charts.of("3h") == first
    # Nobody knows of this one: the hour is shown, and says that it is the hour.
    assert charts.of("6h")["range_text"] == "last hour"


def test_without_a_ledger_there_is_the_hour_alone(never_recruiter: Recruiter, client: Any) -> None:
    never_recruiter.job(rate=0.5, name="tidy")(lambda slice: 3)
    shown = view(make_app(never_recruiter, client), "?range=6h")
    assert not shown["has_ranges"]
    assert shown["charts"]["range"] == "1h"


def test_the_address_keeps_the_range_beside_the_searches(
    never_recruiter: Recruiter, client: Any
) -> None:
    assert selection_of({"range": "12h", "jobs": "x"}).arguments("jobs") == {"range": "12h"}
    assert selection_of({"range": "<b>"}).arguments() == {}
    write(client, 5, 0, worked=30)
    page = make_app(never_recruiter, client).test_client().get("/ws/?range=6h&jobs=tidy").text
    assert 'href="/ws/?range=3h&amp;jobs=tidy" data-range="3h">3 h</a>' in page
    assert 'data-range="6h" aria-current="true">6 h</a>' in page
    assert '<input type="hidden" name="range" value="6h">' in page
    # Without scripts: the last values as text, and the page comes again with the same range.
    assert 'content="10; url=/ws/?range=6h&amp;jobs=tidy"' in page
    assert "Enlisted a second: 100, at most 100." in page


def test_minutes_before_a_time_are_read_without_asking_for_the_time(client: Any) -> None:
    present = write(client, 5, 0, worked=30)
    found = read(client, minutes=3, before=present - 60)
    assert [each.minute for each in found] == [present - 240, present - 180, present - 120]
    assert [each.enlisted for each in found] == [6000] * 3
