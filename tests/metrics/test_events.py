"""The events of a fleet: what is noted, grouped, bounded and read, and what a fault of it costs."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
import redis

from support.servers import AnyServer, RedisServer
from workstealing import Recruiter, __version__
from workstealing.errors import Aborted, ConfigurationError, LayoutError
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics import events
from workstealing.metrics import ledger as ledgers
from workstealing.metrics.events import (
    EventTeller,
    FleetEvent,
    SilenceTeller,
    noting,
    read_events,
    this_host,
    this_user,
)
from workstealing.metrics.ledger import Ledger, processes
from workstealing.metrics.minutes import (
    Process,
    events_key,
    namespace_of,
    process_text,
    processes_key,
    settings_key,
)
from workstealing.metrics.shared_settings import Setting, SharedSettings
from workstealing.recruiting import Slice
from workstealing.recruiting.hooks import ANNOUNCEMENTS, Announcement
from workstealing.store.operations import Steps, drive
from workstealing.structures import VolatileHashes
from workstealing.testing import ManualClock

PATIENCE = 120.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow."""
    monkeypatch.setattr(ledgers, "_SEND_SECONDS", PATIENCE)
    monkeypatch.setattr(ledgers, "_WAIT_SECONDS", PATIENCE)


def note(client: Any, kind: str, subject: str, text: str = "", ago: float = 0.0) -> None:
    def steps() -> Steps[None]:
        yield noting("default", Announcement(kind, subject, text, 0.0), ago)

    drive(client, steps())


def from_host(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(events.socket, "gethostname", lambda: host)


@pytest.mark.contract
class TestSettings:
    def test_a_change_is_an_event_with_who_where_and_what_was_before(
        self, any_server: AnyServer
    ) -> None:
        client = any_server.client()
        shared = SharedSettings(client, user="ada")
        shared.set_rate("tidy", 0.25)
        shared.set_rate("tidy", 0.5)
        shared.pause("tidy")
        SharedSettings(client).clear("tidy")
        newest, pause, second, first = read_events(client)
        assert [each.kind for each in (first, second, pause)] == ["rate", "rate", "paused"]
        assert first.sentence == "the fleet's rate of tidy was changed: none -> 0.25"
        assert second.sentence == "the fleet's rate of tidy was changed: 0.25 -> 0.5"
        assert pause.sentence == "tidy was paused in the whole fleet"
        assert {each.user for each in (first, second, pause)} == {"ada"}
        assert newest.sentence == (
            "the fleet's settings of tidy were removed: 1 -> none, 0.5 -> none"
        )
        assert newest.user == this_user()
        assert newest.hosts == (this_host(),)
        seconds = client.time()[0]
        assert seconds - 120 < first.first == first.at <= newest.at < seconds + 2

    def test_a_change_to_the_same_is_none(self, any_server: AnyServer) -> None:
        client = any_server.client()
        shared = SharedSettings(client)
        shared.pause("tidy")
        shared.pause("tidy")
        shared.resume("other")
        shared.clear("other")
        (event,) = read_events(client)
        assert (event.kind, event.count) == ("paused", 1)
        assert shared.settings() == {"tidy": Setting(paused=True)}


class TestAFullServer:
    @pytest.fixture
    def client(self, start_redis: Any) -> Any:
        return start_redis(7).client()

    def test_ends_a_pause_all_the_same(self, client: Any) -> None:
        shared = SharedSettings(client)
        shared.pause("tidy")
        client.config_set("maxmemory", "1")
        with pytest.raises(redis.OutOfMemoryError):
            shared.pause("other")
        shared.resume("tidy")
        assert shared.settings() == {}
        # The server lets a script that has written go on.
        assert [each.kind for each in read_events(client)] == ["resumed", "paused"]


def test_a_user_who_may_not_write_events_changes_settings(
    redis7: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The rights that an earlier release printed do not name XADD."""
    admin = redis7.client()
    admin.acl_setuser("dora", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-xadd"])
    try:
        client = redis.Redis(port=redis7.port, username="dora", password="x", protocol=2)
        shared = SharedSettings(client)
        with caplog.at_level(logging.WARNING):
            shared.pause("tidy")
        assert "is no event:" in caplog.text
        assert shared.settings() == {"tidy": Setting(paused=True)}
        assert read_events(admin) == []
    finally:
        admin.acl_deluser("dora")


@pytest.mark.contract
class TestGrouping:
    def test_processes_that_say_the_same_within_a_minute_share_an_event(
        self, any_server: AnyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = any_server.client()
        for number in range(7):
            from_host(monkeypatch, f"web-{number % 6}")
            note(client, "unreached", "10.0.0.1:6379", ago=30.0 - number)
        note(client, "unreached", "10.0.0.2:6379")
        other, shared = read_events(client)
        assert other.subject == "10.0.0.2:6379"
        assert shared.count == 7
        assert shared.hosts == ("web-0", "web-1", "web-2", "web-3", "web-4", "...")
        assert 5.0 <= shared.at - shared.first <= 60.0
        assert shared.sentence == "10.0.0.1:6379 did not answer 7 processes"

    def test_those_further_apart_do_not(self, any_server: AnyServer) -> None:
        client = any_server.client()
        note(client, "stuck", "tidy", ago=600.0)
        note(client, "stuck", "tidy", ago=90.0)
        note(client, "stuck", "tidy", ago=0.0)
        assert [each.count for each in read_events(client)] == [1, 1, 1]

    def test_the_newest_is_the_first_whatever_came_first(self, any_server: AnyServer) -> None:
        client = any_server.client()
        note(client, "stuck", "late", ago=5.0)
        note(client, "stuck", "tidy", ago=50.0)
        assert [each.subject for each in read_events(client)] == ["late", "tidy"]


@pytest.mark.contract
def test_their_number_and_their_time_are_bounded(any_server: AnyServer) -> None:
    client = any_server.client()
    for number in range(events.MOST_EVENTS + 20):
        note(client, "layout", f"hashes {number}", "emulated -> native")
    assert client.xlen(events_key("default")) == events.MOST_EVENTS
    assert 0 < client.ttl(events_key("default")) <= events.KEEP_SECONDS
    assert len(read_events(client, most=7)) == 7
    newest = read_events(client, since=3600)[0]
    assert newest.sentence == f"hashes {events.MOST_EVENTS + 19}: emulated -> native"


@pytest.mark.contract
def test_a_strangers_entries_are_left_out(any_server: AnyServer) -> None:
    client = any_server.client()
    key = events_key("default")
    for fields in (
        {"kind": "stuck"},
        {"kind": "nonsense", "at": 1, "first": 1, "count": 1},
        {"kind": "stuck", "at": "1e400", "first": 1, "count": 1},
        {"kind": "stuck", "at": 1, "first": 2, "count": 1},
        {"kind": "stuck", "at": 1, "first": 1, "count": 0},
        {b"\xff": b"\xfe"},
    ):
        client.xadd(key, fields)  # type: ignore[arg-type, unused-ignore]
    assert read_events(client) == []
    note(client, "stuck", "tidy")
    assert [each.subject for each in read_events(client)] == ["tidy"]


@pytest.mark.contract
def test_a_foreign_key_is_refused_by_name(any_server: AnyServer) -> None:
    client = any_server.client()
    client.set(events_key("default"), "text")
    with pytest.raises(LayoutError, match="ledger:default}:events"):
        read_events(client)
    with pytest.raises(LayoutError, match="does not hold the events"):
        note(client, "stuck", "tidy")
    # The settings hold all the same.
    SharedSettings(client).pause("tidy")
    assert SharedSettings(client).settings() == {"tidy": Setting(paused=True)}
    client.delete(events_key("default"), settings_key("default"))
    client.set(settings_key("default"), "text")
    with pytest.raises(LayoutError, match="does not hold the settings"):
        SharedSettings(client).pause("tidy")
    assert read_events(client) == []


@pytest.mark.parametrize("most", [0, -1, 10_001, True, 1.5])
def test_wrong_numbers_are_refused(most: Any) -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 10000"):
        read_events(redis.Redis(port=1), most=most)


class TestTeller:
    """One process's own events, told with its reports."""

    @pytest.fixture
    def teller(self, manual_clock: ManualClock) -> EventTeller:
        return EventTeller("default", manual_clock)

    @staticmethod
    def told(teller: EventTeller) -> list[tuple[str, str, int]]:
        """Let a report arrive; return kind, subject and age in ms of what it tells."""
        _, *commands = teller.ask()
        teller.hear([1, *[1 for _ in commands]])
        return [(each[4], each[5], int(each[9])) for each in commands]

    @staticmethod
    def look(
        teller: EventTeller,
        jobs: dict[str, dict[str, Any]] | None = None,
        unreached: dict[str, float] | None = None,
        failing: tuple[str, float] | None = None,
        *,
        leaves: bool = False,
    ) -> None:
        longest = {"long": 60.0}.get
        teller.look((jobs or {}).items(), unreached or {}, failing, longest, leaves=leaves)

    def test_a_process_comes_and_goes_once(self, teller: EventTeller) -> None:
        self.look(teller)
        assert self.told(teller) == [("came", __version__, 0)]
        self.look(teller)
        assert self.told(teller) == []
        for _ in range(2):
            self.look(teller, leaves=True)
        assert self.told(teller) == [("went", __version__, 0)]

    def test_each_begin_and_end_is_one_event(
        self, teller: EventTeller, manual_clock: ManualClock
    ) -> None:
        self.look(teller)
        assert len(self.told(teller)) == 1
        slow = {"tidy": {"running_seconds": 14.0}, "long": {"running_seconds": 100.0}}
        self.look(teller, slow)
        assert self.told(teller) == []
        for seconds in (16.0, 26.0):
            self.look(teller, {"tidy": {"running_seconds": seconds}}, {"a:1": 5.0})
            manual_clock.advance(10.0)
        assert sorted(self.told(teller)) == [
            ("stuck", "tidy", 36_000),
            ("unreached", "a:1", 25_000),
        ]
        self.look(teller, {"tidy": {"running_seconds": None}})
        assert sorted(self.told(teller)) == [("ended", "tidy", 0), ("reached", "a:1", 0)]

    def test_an_open_breaker_counts_where_every_server_answers(self, teller: EventTeller) -> None:
        jobs = {"tidy": {"breaker_seconds": 4.0}}
        self.look(teller, jobs, {"a:1": 4.0})
        assert [kind for kind, *_ in self.told(teller)] == ["came", "unreached"]
        self.look(teller, jobs)
        assert [kind for kind, *_ in self.told(teller)] == ["held_back", "reached"]

    def test_a_report_that_arrives_at_last_says_for_how_long_none_did(
        self, teller: EventTeller
    ) -> None:
        self.look(teller)
        self.told(teller)
        for seconds in (10.0, 20.0, 30.0):
            self.look(teller, failing=("OutOfMemoryError", seconds))
            teller.ask()
        (_, command) = teller.ask()
        assert command[4:7] == ("refused", "OutOfMemoryError", "30 s")
        assert self.told(teller) == [("refused", "OutOfMemoryError", 0)]

    def test_what_any_part_of_the_process_announces(self, manual_clock: ManualClock) -> None:
        ANNOUNCEMENTS.tell("layout", "before", "")
        teller = EventTeller("default", manual_clock)
        self.look(teller)
        assert [kind for kind, *_ in self.told(teller)] == ["came"]
        ANNOUNCEMENTS.tell("layout", "the layout of it", "emulated -> native")
        for told in (["the layout of it"], []):
            self.look(teller)
            assert [subject for _, subject, _ in self.told(teller)] == told

    def test_what_was_refused_waits_in_a_bounded_number(self, teller: EventTeller) -> None:
        for number in range(80):
            teller.note("layout", str(number))
        refused = redis.ResponseError("NOPERM")
        _, *commands = teller.ask()
        assert [each[5] for each in commands] == [str(number) for number in range(30, 40)]
        with pytest.raises(redis.ResponseError, match="NOPERM"):
            teller.hear([1, 1, *[refused] * 9])
        assert [subject for _, subject, _ in self.told(teller)] == [
            str(number) for number in range(31, 41)
        ]

    def test_only_one_who_has_told_something_sees_that_it_is_gone(
        self, teller: EventTeller, caplog: pytest.LogCaptureFixture
    ) -> None:
        self.look(teller)
        teller.ask()
        with caplog.at_level(logging.WARNING):
            teller.hear([0, 1])
            assert "was emptied" not in caplog.text
            for told in ([], [redis.OutOfMemoryError("full")]):
                teller.ask()
                teller.hear([0, *told])
        # It is said once, however long the ledger takes no events.
        assert caplog.text.count("was emptied") == 1
        assert [kind for kind, *_ in self.told(teller)] == ["emptied"]


def test_a_recruit_tells_of_another_layout(redis8: RedisServer) -> None:
    hashes = VolatileHashes(redis8.client(), "shop", backend="emulated")
    hashes.hsetex("a", mapping={"f": 1}, ex=600)
    number, _ = ANNOUNCEMENTS.since(0)
    clock = ManualClock(100.0)
    job = HashFieldExpiry(hashes, clock=clock)
    job.perform(Slice(10, 600.0))
    redis8.client().hset(hashes.names.layout, "backend", "migrating")
    clock.advance(60.0)
    with contextlib.suppress(Aborted, LayoutError):
        job.perform(Slice(10, 600.0))
    _, (told,) = ANNOUNCEMENTS.since(number)
    assert told.subject == "the layout of the volatile hashes 'shop'"
    assert told.text == "emulated, version 1 -> migrating, version 1"


@pytest.mark.contract
def test_a_ledgers_reports_tell_of_its_process(any_server: AnyServer) -> None:
    client = any_server.client()
    ledger, recruiter = Ledger(client), Recruiter()
    recruiter.add_hook(ledger)
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    SharedSettings(client).pause("tidy")
    client.delete(events_key("default"))
    ledger.on_enlisted(1)
    assert ledger.flush(PATIENCE)
    ledger.close(PATIENCE)
    assert [each.kind for each in read_events(client)] == ["went", "emptied"]


@pytest.mark.contract
def test_a_killed_process_is_told_by_another_one_once(any_server: AnyServer) -> None:
    client = any_server.client()
    now = client.time()[0]
    hashes = VolatileHashes(client, namespace=namespace_of("default"))
    fresh = Process("web-9", 9, "1.0", now - 900, now + 600, 30.0)
    for each in (*(_killed(pid, now) for pid in range(7)), fresh):
        hashes.hsetex(
            processes_key("default"),
            mapping={f"{each.host}:{each.pid}:0": process_text(each)},
            ex=600,
        )
    fleet = [Ledger(client), Ledger(client)]
    for ledger in fleet * 4:
        ledger.on_enlisted(1)
        assert ledger.flush(PATIENCE)
    for ledger in fleet:
        ledger.close(PATIENCE)
    (told,) = [each for each in read_events(client) if each.kind == "fell_silent"]
    named = "; ".join(f"web-1, process {pid}" for pid in range(5))
    assert told.sentence == (
        "7 processes of release 0.9 fell silent, killed or held up, without taking leave:"
        f" {named} and 2 more"
    )
    # Their last report counts, not the moment at which it was noticed.
    assert abs(told.at - (now - 100)) < 60
    assert told.count == 1
    # The marks are no processes.
    hosts = [each.host for each in processes(client)]
    assert (hosts.count("web-1"), hosts.count("web-9")) == (7, 1)
    assert len(hosts) <= 10


def _killed(pid: int, now: float) -> Process:
    return Process("web-1", pid, "0.9", now - 900, now - 100, 30.0)


def test_a_large_fleets_processes_look_less_often() -> None:
    teller = SilenceTeller("default", lambda *_: None)
    looks, now = 0, 1_000_000.0
    fields = {
        f"web:{pid}:0": process_text(Process("web", pid, "1.0", now, now + 1e5, 30.0))
        for pid in range(600)
    }
    for _ in range(1000):
        now += 10.0
        for asked in teller.ask(now):
            looks += asked[0] == "HGETALL"
            teller.hear([fields], now, now)
    # 600 processes look about once in 50 minutes each, the fleet twelve times a minute.
    assert 2 <= looks <= 9


def test_every_kind_has_a_sentence() -> None:
    for kind in events.KINDS:
        event = FleetEvent(kind, "it", "more", 2.0, 1.0, ("a",), "", 2)
        assert "{" not in event.sentence
