"""The fleet's settings: their writing, their following, and the return to own rates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from support.servers import AnyServer, RedisServer
from workstealing.dashboard.fleet_state import fleet_state
from workstealing.errors import ConfigurationError, RateError
from workstealing.metrics import ledger as ledgers
from workstealing.metrics.ledger import Ledger, processes
from workstealing.metrics.minutes import settings_key
from workstealing.metrics.shared_settings import Setting, SharedSettings, follow
from workstealing.recruiting import FunctionJob, Outcome, Recruiter
from workstealing.recruiting.adaptive import Adaptive
from workstealing.store.connection import SENT, Command, OneAttempt

PATIENCE = 120.0


class Process:
    """What one process of a fleet has: a recruiter, and a ledger that is sent by hand."""

    def __init__(self, client: Any, **rates: float) -> None:
        self.recruiter = Recruiter(random=lambda: 0.0)
        for name, rate in rates.items():
            self.recruiter.install(FunctionJob(lambda slice: 1, name=name), rate=rate)
        self.ledger = Ledger(client, interval=3_600.0)
        self.recruiter.add_hook(self.ledger)
        follow(self.recruiter, self.ledger)

    def report(self) -> None:
        """Send the ledger now."""
        self.ledger.on_enlisted(1)
        assert self.ledger.flush(PATIENCE)

    def rate(self, job: str) -> float:
        """Return the rate that a job has now."""
        return self.recruiter.stats()["jobs"][job]["rate"]

    def rests(self, job: str) -> bool:
        """Say whether a job, the only one that is drawn, is skipped."""
        return self.recruiter.enlist() is Outcome.SKIPPED


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be slow: a time-out would lose the settings until the next report."""
    monkeypatch.setattr(ledgers, "_SEND_SECONDS", PATIENCE)
    monkeypatch.setattr(ledgers, "_WAIT_SECONDS", PATIENCE)


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Make processes, and end their threads afterwards."""
    made: list[Process] = []

    def process(client: Any, **rates: float) -> Process:
        made.append(Process(client, **rates))
        return made[-1]

    yield process
    for each in made:
        each.ledger.close(timeout=120.0)


def test_settings_are_followed_and_given_up(
    any_server: AnyServer, process: Callable[..., Process]
) -> None:
    fleet = SharedSettings(any_server.client())
    first, second = (process(any_server.client(), sweep=0.5) for _ in range(2))
    assert fleet.settings() == {}
    fleet.pause("sweep")
    fleet.set_rate("sweep", 0.125)
    assert fleet.settings() == {"sweep": Setting(paused=True, rate=0.125)}
    assert (first.rate("sweep"), first.rests("sweep")) == (0.5, False)
    for each in (first, second):
        each.report()
        assert (each.rate("sweep"), each.rests("sweep")) == (0.125, True)
    fleet.resume("sweep")
    assert fleet.settings() == {"sweep": Setting(paused=False, rate=0.125)}
    first.report()
    assert (first.rate("sweep"), first.rests("sweep")) == (0.125, False)
    fleet.set_rate("sweep", 1)
    first.report()
    assert first.rate("sweep") == 1.0
    fleet.clear("sweep")
    assert fleet.settings() == {}
    for each in (first, second):
        each.report()
        assert (each.rate("sweep"), each.rests("sweep")) == (0.5, False)


def test_lost_settings_are_said_and_not_those_that_somebody_has_removed(
    any_server: AnyServer, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    """As of FLUSHALL: nobody has removed them, and each process goes back to its own."""
    client = any_server.client()
    fleet = SharedSettings(client)
    one = process(any_server.client(), sweep=0.5, tidy=0.25)
    fleet.pause("sweep")
    fleet.set_rate("sweep", 0.125)
    fleet.set_rate("tidy", 0.0625)
    one.report()
    fleet.clear("tidy")
    one.report()
    assert [each.lost for each in processes(client)] == [None]
    client.delete(settings_key("default"))
    one.report()
    assert one.rate("sweep") == 0.5
    assert "the fleet's settings were lost: sweep was paused and had the rate 0.125" in caplog.text
    # Told with the next report, and from then on.
    for _ in range(2):
        one.report()
        (lost,) = [each.lost for each in processes(client)]
        assert lost is not None
        assert lost.settings == {"sweep": "was paused and had the rate 0.125"}
    said = fleet_state(processes(client), time.time()).lost
    assert said is not None
    assert "sweep was paused and had the rate 0.125" in said
    fleet.clear("sweep")
    for _ in range(2):
        one.report()
    assert [each.lost for each in processes(client)] == [None]


def test_settings_ride_in_the_ledgers_pipeline(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    one = process(redis7.client(), sweep=0.5)
    one.report()
    SharedSettings(redis7.client()).set_rate("sweep", 0.25)
    trips = SENT.round_trips
    one.report()
    assert SENT.round_trips == trips + 1
    assert one.rate("sweep") == 0.25


def test_text_replies_serve_too(redis7: RedisServer) -> None:
    fleet = SharedSettings(redis7.client(decode_responses=True))
    fleet.set_rate("a:b", 0.25)
    fleet.pause("é")
    assert fleet.settings() == {"a:b": Setting(rate=0.25), "é": Setting(paused=True)}


def test_following_twice_is_following_once(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    one = process(redis7.client(), sweep=0.5)
    follow(one.recruiter, one.ledger)
    fleet = SharedSettings(redis7.client())
    fleet.set_rate("sweep", 0.25)
    fleet.pause("sweep")
    one.report()
    assert (one.rate("sweep"), one.rests("sweep")) == (0.25, True)
    fleet.clear("sweep")
    one.report()
    assert (one.rate("sweep"), one.rests("sweep")) == (0.5, False)


def test_ledgers_are_apart(redis7: RedisServer, process: Callable[..., Process]) -> None:
    one = process(redis7.client(), sweep=0.5)
    SharedSettings(redis7.client(), "another").set_rate("sweep", 0.25)
    one.report()
    assert one.rate("sweep") == 0.5


def test_unknown_jobs_are_ignored(redis7: RedisServer, process: Callable[..., Process]) -> None:
    fleet = SharedSettings(redis7.client())
    fleet.pause("elsewhere")
    fleet.set_rate("elsewhere", 0.1)
    one = process(redis7.client(), sweep=0.5)
    one.report()
    assert one.rate("sweep") == 0.5
    one.recruiter.install(FunctionJob(lambda slice: 1, name="elsewhere"), rate=0.3)
    one.report()
    assert one.rate("elsewhere") == 0.1


def test_a_job_that_leaves_while_it_is_asked_for(
    redis7: RedisServer,
    process: Callable[..., Process],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    SharedSettings(redis7.client()).set_rate("sweep", 0.1)
    SharedSettings(redis7.client()).pause("sweep")
    one = process(redis7.client(), sweep=0.5, reaper=0.25)
    send = OneAttempt._round_trip

    def leave(self: OneAttempt, commands: Sequence[Command]) -> list[Any]:
        if ("MULTI",) in commands:
            one.recruiter.uninstall("sweep")
        return send(self, commands)

    with monkeypatch.context() as leaving:
        leaving.setattr(OneAttempt, "_round_trip", leave)
        one.report()
    assert caplog.records == []


def test_a_job_that_leaves_while_it_is_set(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client(), sweep=0.5)
    fleet.set_rate("sweep", 0.1)
    fleet.pause("sweep")
    one.report()
    one.recruiter.uninstall("sweep")
    one.report()
    one.recruiter.install(FunctionJob(lambda slice: 1, name="sweep"), rate=0.7)
    one.report()
    assert (one.rate("sweep"), one.rests("sweep")) == (0.1, True)
    fleet.clear("sweep")
    one.report()
    assert (one.rate("sweep"), one.rests("sweep")) == (0.7, False)


def test_what_a_process_sets_itself_holds_until_its_next_report(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client(), sweep=0.5)
    fleet.set_rate("sweep", 0.1)
    one.report()
    one.recruiter.set_rate("sweep", 0.6)
    one.report()
    assert one.rate("sweep") == 0.1
    fleet.clear("sweep")
    one.report()
    assert one.rate("sweep") == 0.6


def test_what_a_process_has_set_itself_meanwhile_stays(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    one = process(redis7.client(), sweep=0.5)
    fleet = SharedSettings(redis7.client())
    for rate in (0.25, 0.5):
        fleet.set_rate("sweep", rate)
        one.report()
        one.recruiter.set_rate("sweep", 0.125)
        fleet.clear("sweep")
        one.report()
        assert one.rate("sweep") == 0.125
        one.recruiter.set_rate("sweep", 0.5)


def test_a_process_that_rests_by_itself_goes_on_resting(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    one = process(redis7.client(), sweep=0.5)
    one.recruiter.pause("sweep")
    fleet = SharedSettings(redis7.client())
    fleet.pause("sweep")
    one.report()
    fleet.resume("sweep")
    one.report()
    assert one.rests("sweep")


def test_a_job_of_the_same_name_is_another_job(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client(), sweep=0.5)
    fleet.set_rate("sweep", 0.25)
    fleet.pause("sweep")
    one.report()
    one.recruiter.uninstall("sweep")
    one.report()
    one.recruiter.install(FunctionJob(lambda slice: 1, name="sweep"), rate=0.25)
    one.recruiter.pause("sweep")
    fleet.clear("sweep")
    one.report()
    assert (one.rate("sweep"), one.rests("sweep")) == (0.25, True)


def test_an_adaptive_rate_comes_back(redis7: RedisServer, process: Callable[..., Process]) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client())
    adaptive = Adaptive(floor=0.001, ceiling=0.1)
    one.recruiter.install(FunctionJob(lambda slice: 1, name="sweep"), rate=adaptive)
    fleet.set_rate("sweep", 0.25)
    one.report()
    one.report()
    assert one.recruiter.given_rate("sweep") == 0.25
    fleet.clear("sweep")
    one.report()
    assert one.recruiter.given_rate("sweep") == adaptive
    assert one.recruiter.stats()["jobs"]["sweep"]["adaptive"]


@pytest.mark.parametrize("rate", [0, -0.1, 1.5, float("nan"), "0.5", None, True])
def test_an_illegal_rate_is_refused_when_it_is_set(redis7: RedisServer, rate: Any) -> None:
    fleet = SharedSettings(redis7.client())
    with pytest.raises(RateError, match="expected"):
        fleet.set_rate("sweep", rate)
    assert fleet.settings() == {}


@pytest.mark.parametrize("job", ["", "  ", None, "x" * 1_001])
def test_a_name_that_cannot_be(redis7: RedisServer, job: Any) -> None:
    fleet = SharedSettings(redis7.client())
    with pytest.raises(ConfigurationError, match="name"):
        fleet.pause(job)
    assert fleet.settings() == {}


@pytest.mark.parametrize("rate", [b"2", b"nan", b"", b"much", b"\xff", b"-1", b"9" * 5_000])
def test_an_illegal_rate_in_redis_harms_nobody(
    redis7: RedisServer,
    process: Callable[..., Process],
    caplog: pytest.LogCaptureFixture,
    rate: bytes,
) -> None:
    client = redis7.client()
    one = process(redis7.client(), sweep=0.5, other=0.25)
    client.hset(settings_key("default"), "rate:sweep", rate)
    client.hset(settings_key("default"), "rate:other", b"0.125")
    client.hset(settings_key("default"), "nonsense", b"1")
    with caplog.at_level(logging.ERROR, logger="workstealing"):
        one.report()
        one.report()
    assert (one.rate("sweep"), one.rate("other")) == (0.5, 0.125)
    lines = [r.getMessage() for r in caplog.records if "setting of job 'sweep'" in r.getMessage()]
    assert len(lines) == 1
    assert SharedSettings(client).settings() == {"other": Setting(rate=0.125)}


def test_rates_may_change_places_at_once(
    redis7: RedisServer, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    # Installed in the order in which the first has no room until the second has given way.
    one = process(redis7.client(), small=0.05, large=0.9)
    fleet = SharedSettings(redis7.client())
    fleet.set_rate("small", 0.8)
    fleet.set_rate("large", 0.1)
    with caplog.at_level(logging.ERROR, "workstealing"):
        one.report()
    assert (one.rate("small"), one.rate("large")) == (0.8, 0.1)
    assert caplog.records == []


NO_TEXT = "from a file \udcff"


def test_a_name_that_is_no_text_is_set_and_followed(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client(), **{NO_TEXT: 0.5, "sweep": 0.25})
    fleet.pause(NO_TEXT)
    fleet.set_rate("sweep", 0.125)
    one.report()
    assert (one.rests(NO_TEXT), one.rate("sweep")) == (True, 0.125)
    assert fleet.settings()[r"from a file \udcff"] == Setting(paused=True)
    fleet.clear(NO_TEXT)
    one.report()
    assert not one.rests(NO_TEXT)


def test_nobody_asks_after_a_name_that_cannot_be_set(
    redis7: RedisServer, process: Callable[..., Process]
) -> None:
    one = process(redis7.client(), **{"x" * 100_000: 0.5, "sweep": 0.25})
    one.report()
    received = redis7.client().info("stats")["total_net_input_bytes"]
    one.report()
    assert redis7.client().info("stats")["total_net_input_bytes"] - received < 50_000


def test_what_nobody_can_have_set_is_passed_over(redis7: RedisServer) -> None:
    fields = {"paused:": "1", "rate:": "0.5", "paused: ": "1", "paused:" + "x" * 2_000: "1"}
    redis7.client().hset(settings_key("default"), mapping=fields)
    assert SharedSettings(redis7.client()).settings() == {}


def test_rates_that_leave_no_room_are_logged(
    redis7: RedisServer, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = SharedSettings(redis7.client())
    one = process(redis7.client(), sweep=0.5, other=0.25)
    fleet.set_rate("sweep", 0.9)
    one.report()
    assert one.rate("sweep") == 0.5
    assert "above 1" in caplog.text
    one.recruiter.uninstall("other")
    one.report()
    assert one.rate("sweep") == 0.9


def test_a_full_server_is_listened_to(
    start_redis: Callable[..., RedisServer], process: Callable[..., Process]
) -> None:
    # What rests may be what would make room.
    client = start_redis(7, maxmemory="3mb", maxmemory_policy="noeviction").client()
    one = process(client, sweep=0.5)
    fleet = SharedSettings(client)
    fleet.pause("sweep")
    one.report()
    assert one.rests("sweep")
    client.config_set("maxmemory", 1)
    fleet.resume("sweep")
    one.ledger.on_enlisted(1)
    assert not one.ledger.flush(PATIENCE)
    assert not one.rests("sweep")


def test_a_foreign_key_harms_no_count(
    redis7: RedisServer, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    client = redis7.client()
    client.set(settings_key("default"), "foreign")
    one = process(redis7.client(), sweep=0.5)
    one.report()
    assert "WRONGTYPE" in caplog.text
    assert one.rate("sweep") == 0.5


async def test_an_asyncio_client_is_refused(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        with pytest.raises(ConfigurationError, match="blocking"):
            SharedSettings(client)


def test_a_rate_that_a_process_refuses_is_said_with_the_reason(
    redis7: RedisServer, process: Callable[..., Process], caplog: pytest.LogCaptureFixture
) -> None:
    client = redis7.client()
    fleet, one = SharedSettings(client), process(client, sweep=0.5, other=0.4)
    fleet.set_rate("sweep", 0.9)
    one.report()
    one.report()
    job = ledgers.total(ledgers.read(client, minutes=2))["sweep"]
    assert job.rate == 0.5
    assert job.refused is not None
    assert "would raise the sum of all rates to 1.3" in job.refused
    assert job.refused_rate == 0.9
    assert "other" not in one.ledger._reports.refused
    # It is taken once there is room, and then refused no more.
    one.recruiter.uninstall("other")
    one.report()
    assert (one.rate("sweep"), one.ledger._reports.refused) == (0.9, {})
