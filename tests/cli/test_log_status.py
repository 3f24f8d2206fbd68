"""Logs and their jobs in `status`, `top`, `jobs`, `doctor` and `drain`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from support.app_clients import client_source
from support.patience import patient
from support.servers import RedisCluster3, RedisServer
from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.structures import Log

__all__ = ["patient"]

pytestmark = pytest.mark.real

MakeApp = Callable[[str], str]

APP = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import LogCompactor, LogTrimmer
    from workstealing.structures import Log

    client = {client}
    recruiter = Recruiter(seconds=5.0)
    activity = Log(client, "activity", block=10)
    recruiter.install(LogCompactor(activity, cold=0), rate=0.1)
    recruiter.install(LogTrimmer(activity, 2, max_entries=30), rate=0.1)
"""


def app(server: RedisServer | RedisCluster3) -> str:
    return APP.format(client=client_source(server))


def fill(server: RedisServer | RedisCluster3) -> Any:
    log = Log(server.client(), "activity", block=10)
    log.append(*[b"entry"] * 75)
    return log


def check_status(command: Any, name: str) -> None:
    found, jobs = command.well(name)
    assert found == {
        ("log", "activity"): (75, 7, 0),
        ("log (log_trimmer.activity)", "activity"): (None, 4, None),
    }
    assert jobs == {"log_compactor.activity": 7, "log_trimmer.activity": 4}
    text = command("status", "--app", name)
    assert "7 blocks to compact" in text
    assert "4 blocks to trim" in text


def test_status_shows_a_log(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    fill(redis7)
    name = app_module(app(redis7))
    check_status(command, name)
    assert "log (log_trimmer.activity)" in command("top", "--app", name, "--times", "1")
    listed = command.json("jobs", "--app", name)["jobs"]
    assert [(each["kind"], each["backlog"], each["divisible"]) for each in listed] == [
        ("LogCompactor", True, True),
        ("LogTrimmer", True, True),
    ]
    assert all(each["summary"] and each["dry_run"] is False for each in listed)


@pytest.mark.cluster
def test_status_shows_a_log_of_a_cluster(
    command: Any, app_module: MakeApp, cluster: RedisCluster3
) -> None:
    fill(cluster)
    check_status(command, app_module(app(cluster)))


def test_status_tells_of_entries_that_nobody_could_work_on(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    log = fill(redis7)
    late = Log(redis7.client(), "activity", clock_shift_ms=3_600_000)
    for each in (log, late):
        group = each.group("mail", ack=True, max_attempts=1)
        group.read(2)
    said = command.json("status", "--app", app_module(app(redis7)), status=1)
    assert [each["dead"] for each in said["structures"]] == [2, None]


def test_what_nobody_has_used_yet_is_not_made_by_looking(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    said = command.json("status", "--app", app_module(app(redis7)))
    assert [(each["size"], each["due"]["count"]) for each in said["structures"]] == [
        (0, 0),
        (None, 0),
    ]
    found = command.checks(app_module(app(redis7)))
    nothing = ("note", "log activity: nothing has been written yet")
    assert found["job log_compactor.activity"] == found["job log_trimmer.activity"] == nothing
    assert found["client"][0] == "ok"
    # The ledger's namespace is opened, and nothing of a log.
    assert redis7.client().keys() == [b"ws:ledger.default:layout"]


def test_drain_compacts_and_trims(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    log = fill(redis7)
    before = log.read(0, 75)
    said = command.json("drain", "--app", app_module(app(redis7)))
    assert said["drained"] is True
    assert said["jobs"]["log_trimmer.activity"]["items"] == 4
    facts = log.stats()
    assert (facts.entries, facts.open, facts.sealed, facts.compressed) == (35, 1, 3, 3)
    assert log.read(0, 75) == [None] * 40 + before[40:]


def test_doctor_examines_logs(
    command: Any, app_module: MakeApp, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(status: int = 0) -> tuple[str, str]:
        found: tuple[str, str] = command.checks(app_module(app(redis7)), status)[
            "job log_trimmer.activity"
        ]
        return found

    log = fill(redis7)
    assert check() == ("ok", "log activity: blocks of 10 entries, layout version 1")
    zstd = LogCompactor(log, 10, cold=0, codec="zstd", random=lambda: 0.0)
    zstd.perform(Slice(10, 10.0))
    level, said = check()
    assert level == "ok"
    assert "the oldest of them compressed by zstd" in said
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "zstandard", None)
        level, said = check(status=1)
    assert level == "fault"
    assert "workstealing[log]" in said
    redis7.client().hset(log.keys.meta, "mark", "3")
    level, said = check(status=1)
    assert level == "fault"
    assert "says 3 where 2 was expected" in said
    redis7.client().delete(log.keys.meta)
    redis7.client().set(log.keys.meta, "foreign")
    level, said = check(status=1)
    assert level == "fault"
    assert "holds another type" in said
