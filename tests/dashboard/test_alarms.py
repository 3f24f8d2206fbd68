"""The alarms of a page: alike ones are one line, and each names where to read on."""

from __future__ import annotations

from typing import Any

import flask
import pytest
from markupsafe import Markup

from support.dashboards import make_app, write_hour
from workstealing.dashboard import create_dashboard
from workstealing.dashboard.alarms import MOST_ALARMS, with_links
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Recruiter

RUNBOOK = "https://wiki.example.org/ops/runbook"
BROKEN = {"failed": 30, "oldest.0": 5.0}


def shown(app: flask.Flask) -> dict[str, Any]:
    """Return the page's texts."""
    found: dict[str, Any] = app.test_client().get("/ws/view.json").get_json()
    return found


def test_jobs_that_one_fault_has_broken_are_one_line(
    never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {f"tidy {number}": BROKEN for number in range(30)})
    write_hour(client, {"sweep": {"aborted": 30, "worked": 30}, "well": {"worked": 30}})
    page = shown(make_app(never_recruiter, client))
    assert page["alarm_count"] == len(page["alarms"]) == 2
    (broken,) = [line for line in page["alarms"] if "tidy" in line]
    named = "tidy 0, tidy 1, tidy 10, tidy 11, tidy 12, tidy 13, tidy 14, tidy 15 and 22 more"
    assert broken.startswith(f"{named}: 30 jobs alike. tidy ")
    assert broken.endswith("100% of its slices failed")
    assert page["verdict"] == "2 alarms"


def test_jobs_with_different_faults_have_a_line_each(
    never_recruiter: Recruiter, client: Any
) -> None:
    write_hour(client, {"a": BROKEN, "b": {"aborted": 30, "worked": 30}})
    assert len(shown(make_app(never_recruiter, client))["alarms"]) == 2


def test_more_lines_than_a_page_has_are_counted(never_recruiter: Recruiter, client: Any) -> None:
    # Their classes of errors tell them apart.
    jobs = {
        f"job {number}": {"failed": 30, f"error.Fault{chr(97 + number)}": 30}
        for number in range(MOST_ALARMS + 3)
    }
    write_hour(client, jobs)
    page = shown(make_app(never_recruiter, client))
    assert page["alarm_count"] == MOST_ALARMS + 3
    assert page["alarms"][-1] == "and 3 more"
    assert len(page["alarms"]) == MOST_ALARMS + 1


def test_the_section_of_the_runbook_is_a_link_to_its_published_page() -> None:
    line = "<b>: it fails; docs/runbook.md#workstealingmanyfailures"
    assert with_links(line, None) == line
    assert with_links(line, RUNBOOK) == Markup(
        "&lt;b&gt;: it fails; "
        f'<a href="{RUNBOOK}#workstealingmanyfailures" rel="noreferrer">'
        "docs/runbook.md#workstealingmanyfailures</a>"
    )


@pytest.mark.parametrize("wrong", ["javascript:alert(1)", "/runbook", "https://x/#a", "", 5])
def test_only_an_http_address_is_linked_to(
    never_recruiter: Recruiter, client: Any, wrong: Any
) -> None:
    with pytest.raises(ConfigurationError, match=r"^runbook is .*; expected an http address"):
        create_dashboard(never_recruiter, client, runbook=wrong)
