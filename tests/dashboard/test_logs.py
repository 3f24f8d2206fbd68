"""Logs on the dashboard and in `status`, and putting back the dead of their groups."""

from __future__ import annotations

from typing import Any

from support.dashboards import make_app
from support.patience import patient
from support.servers import AnyServer, RedisServer
from workstealing import Recruiter
from workstealing.dashboard.queries import structure_figures
from workstealing.dashboard.steering import steer_dead
from workstealing.dashboard.watched import Watched, watch, watch_all
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.structures import AsyncLog, Log

__all__ = ["patient"]

LATE_MS = 3_600_000


def figures(thing: Any) -> Any:
    found = structure_figures(watch(thing))
    assert found.trouble is None
    return found


def test_every_server_tells_of_a_log(any_server: AnyServer) -> None:
    client = any_server.client()
    log = Log(client, "activity", block=10)
    assert (figures(log).size, figures(log).dead_size, figures(log).due) == (0, 0, None)
    assert set(client.scan_iter()) == set()
    log.append(*[b"entry"] * 75)
    found = figures(LogCompactor(log))
    assert (found.size, found.due.count, found.due.what) == (75, 7, "blocks to compact")
    assert found.watched.job == "log_compactor.activity"
    assert (found.watched.name, found.watched.kind) == ("activity", "log")
    found = figures(LogTrimmer(Log(client, "activity", clock_shift_ms=LATE_MS), max_age=60))
    assert (found.size, found.due.count, found.due.what) == (75, 7, "blocks to trim")
    assert LATE_MS / 1000 - 70 < found.due.oldest_seconds < LATE_MS / 1000
    assert found.watched.job == "log_trimmer.activity"
    assert (found.watched.name, found.watched.kind) == ("activity", "log")


def test_logs_come_once_for_each_job(redis7: RedisServer) -> None:
    client = redis7.client()
    log, other = Log(client, "one"), Log(client, "two")
    asynchronous = AsyncLog(redis7.async_client(), "others")
    compactor, trimmer = LogCompactor(log), LogTrimmer(log)

    def kinds(found: list[Watched]) -> list[tuple[str, str, bool]]:
        return [(each.kind, each.name, each.due is not None) for each in found]

    jobs = [trimmer, compactor, LogTrimmer(asynchronous), LogCompactor(asynchronous)]
    assert kinds(watch_all([log], iter(jobs))) == [
        ("log", "one", True),
        ("log (log_compactor.one)", "one", True),
        # On an asyncio client, too: it is asked through connections of its own.
        ("log", "others", True),
        ("log (log_compactor.others)", "others", True),
    ]
    assert kinds(watch_all([], [trimmer])) == [("log", "one", True)]
    assert kinds(watch_all([], [LogCompactor([log, other])])) == [("log", "one and 1 more", True)]


def kill(client: Any, name: str, *groups: str, entries: int = 2) -> None:
    """Let entries be handed out too often."""
    for shift in (0, LATE_MS):
        log = Log(client, name, clock_shift_ms=shift)
        for group in groups:
            opened = log.group(group, ack=True, lease=30, max_attempts=1)
            opened.read(entries)


def members(watched: Watched) -> list[tuple[str, str]]:
    found = structure_figures(watched)
    assert found.trouble is None
    return sorted((str(each.member), each.part) for each in found.dead)


def item_key_of(watched: Watched, member: str, part: str = "") -> str:
    """Return a dead item's key in the page's forms."""
    listed = structure_figures(watched).dead
    (found,) = [each for each in listed if (each.member, each.part) == (member, part)]
    return found.key


def test_dead_entries_of_a_group_are_put_back_for_it_alone(any_server: AnyServer) -> None:
    client = any_server.client()
    log = Log(client, "activity", block=10)
    log.append(*[b"entry"] * 5)
    log.group("plain").read(1)
    kill(client, "activity", "one", "two")
    watched = watch(log)
    assert members(watched) == [
        ("entry 0", "group one"),
        ("entry 0", "group two"),
        ("entry 1", "group one"),
        ("entry 1", "group two"),
    ]
    found = structure_figures(watched)
    assert found.dead_size == 4
    assert all(each.attempts == 1 and each.died for each in found.dead)
    before = set(client.scan_iter())
    key = item_key_of(watched, "entry 1", "group one")
    said = steer_dead("revive", watched, key, sure=False)
    assert said.startswith("1 item of")
    one, two = (log.group(each, ack=True, lease=30, max_attempts=1) for each in ("one", "two"))
    assert [each.offset for each in one.dead()] == [0]
    assert len(two.dead()) == 2
    assert [each.offset for each in one.read(1)] == [1]
    # But for the receipt of the read, which the server removes.
    new = {each for each in set(client.scan_iter()) - before if client.ttl(each) == -1}
    assert new == {log.keys.group("one").revived}
    said = steer_dead("discard", watched, "all", sure=True)
    assert said.startswith("3 items of")
    assert structure_figures(watched).dead_size == 0


def test_dead_entries_of_several_logs_are_told_apart(redis7: RedisServer) -> None:
    client = redis7.client(decode_responses=True)
    logs = [Log(client, name) for name in ("first", "second")]
    for log in logs:
        log.append(b"entry")
        kill(redis7.client(), log.name, "mail", entries=1)
    watched = watch(LogCompactor(logs))
    assert members(watched) == [
        ("entry 0", "group mail of first"),
        ("entry 0", "group mail of second"),
    ]
    key = item_key_of(watched, "entry 0", "group mail of second")
    assert steer_dead("discard", watched, key, sure=True).startswith("1 item")
    assert members(watched) == [("entry 0", "group mail of first")]


def test_a_recruiters_page_shows_its_logs(redis7: RedisServer, never_recruiter: Recruiter) -> None:
    client = redis7.client()
    log = Log(client, "activity \x1b[31m")
    log.append(b"entry")
    never_recruiter.install(LogCompactor(log), rate=0.1)
    never_recruiter.install(LogTrimmer(log, max_entries=10), rate=0.1)
    page = make_app(never_recruiter, client).test_client().get("/ws/").text
    assert "could not be asked" not in page
    for part in ("blocks to compact", "blocks to trim", "log (log_trimmer.activity"):
        assert part in page
