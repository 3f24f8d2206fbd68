"""The rate and the time that a survey tells: those of the very job that its line installs."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
import redis

from support.many_owners import reply_of_celery
from support.servers import AnyServer
from workstealing import jobs
from workstealing.errors import Aborted, OutOfTime
from workstealing.jobs import Leftovers, TagSetLeftovers
from workstealing.jobs.family_leftovers import OldScores
from workstealing.jobs.leftovers.job import PAGES_A_SLICE
from workstealing.jobs.leftovers.walk import KEYS_A_PAGE
from workstealing.recruiting import Slice
from workstealing.survey import Survey, report_of
from workstealing.survey.report import plan

TRAFFIC = 100.0


def _ways(client: Any) -> dict[str, dict[str, Any]]:
    survey = Survey(client, load=1.0)
    survey.run()
    report = json.loads(json.dumps(report_of(survey, TRAFFIC)))
    return {one["rule"]: one for each in report["families"] for one in each["findings"]}


def _perform(job: Leftovers) -> int:
    """Do a slice; return 1, or 0 if a busy machine's reply came too late."""
    try:
        job.perform(Slice(job.limit, 60.0))
    except (Aborted, OutOfTime, redis.TimeoutError):
        return 0
    return 1


def _slices(told: dict[str, Any]) -> float:
    return float(told["seconds"] * TRAFFIC * told["rate"])


@pytest.mark.slow
def test_the_time_is_that_of_the_slices_that_the_job_takes(redis8: AnyServer) -> None:
    client = redis8.client()
    client.sadd("conj:shop:id=1", *(f"page:{number}" for number in range(4_000)))
    client.mset({f"other:{number}": 1 for number in range(3_000)})
    told = _ways(client)["tags.dead_members"]
    job = TagSetLeftovers(client, "conj:shop:id=*", dry_run=False)
    taken = 0
    while client.exists("conj:shop:id=1"):
        taken += _perform(job)
    assert taken == pytest.approx(_slices(told), rel=0.3)


def test_a_walk_takes_as_many_slices_as_its_pages_do(redis8: AnyServer) -> None:
    keys, a_slice = 300_000, KEYS_A_PAGE * PAGES_A_SLICE
    rate, seconds = plan(1, keys, 1, TRAFFIC, 0.0, limit=100)
    assert seconds * TRAFFIC * rate == pytest.approx(keys / a_slice, rel=0.1)
    client = redis8.client()
    for at in range(0, 20_000, 1_000):
        client.mset({f"other:{number}": 1 for number in range(at, at + 1_000)})
    job = TagSetLeftovers(client, dry_run=False)
    (rule,) = job.rules
    taken = 0
    place = job.place_key(rule, None, dry_run=False)
    while client.hget(place, "laps") != b"1":
        taken += _perform(job)
    assert taken == pytest.approx(20_000 / a_slice, rel=0.2)


@pytest.mark.slow
def test_a_smaller_limit_takes_more_slices() -> None:
    few, many = (plan(10**6, 1_000, 1, TRAFFIC, 0.0, limit=each) for each in (100, 25))
    assert many[0] == pytest.approx(4 * few[0], rel=0.05)
    assert many[1] == pytest.approx(few[1], rel=0.05)


def test_each_line_makes_the_job_by_which_it_is_planned() -> None:
    client = redis.Redis()
    judges = Survey(client).judges
    for key in (
        f"it's{uuid.UUID(int=1)}.reply.celery.pidbox",
        "huey.r.mail.r:1",
        "huey.redis.shop",
    ):
        judges.notice(key.encode())
    calls = {each.offer.job.text("conj:x"): each.offer.job for each in judges.asked.values()}
    assert len(calls) > 12
    assert 'CeleryLeftovers(client, prefix="it\'s", wait=<LONGEST_WAIT>)' in calls
    assert "HueyLeftovers(client, 'mail', expiring=True)" in calls
    assert "HueyLeftovers(client, 'shop', retention=<RETENTION>)" in calls
    assert "Leftovers(client, [OldScores('conj:x', window=<WINDOW>, unit='seconds')])" in calls
    known = {**vars(jobs), "OldScores": OldScores, "client": client}
    for line, call in calls.items():
        # A user replaces what stands in <> by seconds, or by a number of entries.
        written = line
        for _, each in call.declared():
            written = written.replace(f"<{each.name}>", repr(each.assumed))
        of_user = eval(written, known)
        planned = call.result(client, "conj:x")
        assert type(of_user) is type(planned)
        assert planned.limit == of_user.limit
        assert [vars(each) for each in planned.rules] == [vars(each) for each in of_user.rules]


def test_a_rule_that_only_reports_takes_no_slices(redis8: AnyServer) -> None:
    client = redis8.client()
    for number in range(30):
        asker = str(uuid.UUID(int=number))
        client.rpush(f"{asker}.reply.celery.pidbox", reply_of_celery(asker))
    told = _ways(client)["celery.replies"]
    # CeleryLeftovers(client) removes by one rule, and reports by another one.
    assert (told["rate"], told["seconds"]) == plan(30, 30, 1, TRAFFIC, 3_600.0, limit=100)
