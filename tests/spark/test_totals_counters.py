"""The counters in Redis, without a JVM: each count arrives at most once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.faulty_server import FaultyServer
from support.patience import PATIENT_SECONDS, left
from support.processes import free_port
from support.servers import RedisServer, wait_until
from workstealing import Recruiter, connect
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Outcome
from workstealing.spark import counters, installing, recruits, workers
from workstealing.spark.counters import RecruitCounters, counters_key
from workstealing.spark.counting import JobTotals, Recruits, recruits_of
from workstealing.spark.making import ClientSettings
from workstealing.spark.workers import EpilogueSettings
from workstealing.testing import ManualClock, always, never

PATIENCE = 120.0


def recruiter_of(job: str = "sweep") -> Recruiter:
    recruiter = always()
    recruiter.job(rate=1.0, name=job)(lambda slice: 3)
    return recruiter


@pytest.fixture
def make() -> Iterator[Callable[..., RecruitCounters]]:
    """Make counters that are sent when the test asks for it, and end their threads afterwards."""
    made: list[RecruitCounters] = []

    def make(recruiter: Recruiter, url: str, **options: Any) -> RecruitCounters:
        hooks = RecruitCounters(
            recruiter, "app", ClientSettings(url=url), **{"interval": 3600.0, **options}
        )
        made.append(hooks)
        return hooks

    yield make
    for hooks in made:
        hooks.close(PATIENCE)


def found(redis: Any) -> dict[str, int]:
    return {
        field.decode(): int(count) for field, count in redis.hgetall(counters_key("app")).items()
    }


class TestSending:
    """What stands in Redis after a send."""

    @pytest.fixture(autouse=True)
    def unhurried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let a send wait longer than 250 ms for a reply: a busy machine is no dead server."""
        monkeypatch.setattr(counters, "_SEND_SECONDS", PATIENCE)
        monkeypatch.setattr(counters, "_WAIT_SECONDS", PATIENT_SECONDS)

    def test_processes_add_up(
        self, make: Callable[..., RecruitCounters], redis7: RedisServer
    ) -> None:
        both = [make(recruiter, redis7.url) for recruiter in (recruiter_of(), recruiter_of())]
        for hooks in both:
            for _ in range(5):
                assert hooks._recruiter.enlist() is Outcome.WORKED
            hooks.on_outcome("sweep", Outcome.FAILED, 0, 0.25, ValueError())
            assert hooks.flush(PATIENCE)
            assert hooks.flush(PATIENCE)
        redis = redis7.client()
        counts = found(redis)
        assert counts.pop("microseconds sweep") >= 500_000
        assert counts == {
            "enlisted": 10,
            "recruited sweep": 10,
            "worked sweep": 10,
            "failed sweep": 2,
            "items sweep": 30,
        }
        assert redis.ttl(counters_key("app")) == left(7 * 24 * 3600)

    def test_names_that_are_no_text_or_very_long(
        self, make: Callable[..., RecruitCounters], redis7: RedisServer
    ) -> None:
        recruiter = always()
        for name in ("from a file \udcff", "é" * 1_000):
            recruiter.job(rate=0.5, name=name)(lambda slice: 3)
        hooks = make(recruiter, redis7.url)
        for name in recruiter.stats()["jobs"]:
            hooks.on_outcome(name, Outcome.IDLE, 0, 0.0, None)
        assert hooks.flush(PATIENCE)
        counts = redis7.client(decode_responses=True).hgetall(counters_key("app"))
        assert counts == {r"idle from a file \udcff": "1", "idle " + "é" * 100: "1"}

    def test_a_cluster(self, make: Callable[..., RecruitCounters], cluster: Any) -> None:
        hooks = make(recruiter_of(), cluster.url.replace("redis://", "redis+cluster://"))
        hooks._recruiter.enlist()
        assert hooks.flush(PATIENCE)
        assert found(cluster.client())["enlisted"] == 1

    def test_an_idle_worker_sends_its_last_counts_and_is_quiet(
        self, make: Callable[..., RecruitCounters], redis7: RedisServer
    ) -> None:
        recruiter = never()
        hooks = make(recruiter, redis7.url, interval=0.02)
        redis = redis7.client()
        for total in (3, 6):
            # Dismissed callers tell no hook: the thread asks the recruiter.
            for _ in range(3):
                recruiter.enlist()
            assert hooks.is_quiet
            hooks.rouse()
            assert not hooks.is_quiet
            wait_until(lambda total=total: found(redis).get("enlisted") == total, "the counts")
            wait_until(lambda: hooks.is_quiet, "the thread to fall quiet")

    def test_who_enlists_while_it_falls_quiet_is_not_forgotten(
        self,
        make: Callable[..., RecruitCounters],
        redis7: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        recruiter = never()
        hooks = make(recruiter, redis7.url)
        flush = recruiter.flush
        looks: list[int] = []

        class Late:
            """The recruiter, whom a caller reaches between two looks and finds no need to rouse."""

            def flush(self) -> None:
                flush()
                looks.append(1)
                if len(looks) == 1:
                    recruiter.enlist()

        monkeypatch.setattr(hooks, "_recruiter", Late())
        hooks.is_quiet = False
        assert hooks._deliver()
        assert not hooks.is_quiet
        assert hooks._deliver()
        assert found(redis7.client()) == {"enlisted": 1}

    def test_when(
        self,
        make: Callable[..., RecruitCounters],
        redis7: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(counters, "_LOOK_SECONDS", 0.002)
        clock = ManualClock()
        recruiter = never(clock=clock)
        looks: list[int] = []
        sends: list[int] = []
        hooks = make(recruiter, redis7.url, interval=5.0, clock=clock)
        flush, send = recruiter.flush, hooks._send

        class Looked:
            """The recruiter, with an eye on who asks it."""

            def flush(self) -> None:
                flush()
                looks.append(1)

        def note(batch: Any) -> None:
            send(batch)
            sends.append(batch.enlisted)

        monkeypatch.setattr(hooks, "_recruiter", Looked())
        monkeypatch.setattr(hooks, "_send", note)

        def look_often() -> None:
            before = len(looks)
            wait_until(lambda: len(looks) > before + 5, "some looks")

        # Neither is the interval over, nor do a thousand wait.
        for _ in range(999):
            recruiter.enlist()
        hooks.rouse()
        look_often()
        clock.advance(4.9)
        look_often()
        assert sends == []
        recruiter.enlist()
        wait_until(lambda: sends == [1_000], "a thousand to be sent")
        # From there on, another interval.
        recruiter.enlist()
        clock.advance(4.9)
        look_often()
        assert sends == [1_000]
        clock.advance(0.1)
        wait_until(lambda: sends == [1_000, 1], "what waits at the interval's end")
        assert found(redis7.client())["enlisted"] == 1_001

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
    def test_a_child_counts_for_itself(
        self, make: Callable[..., RecruitCounters], redis7: RedisServer
    ) -> None:
        recruiter = never()
        hooks = make(recruiter, redis7.url)
        recruiter.enlist()
        assert hooks.flush(PATIENCE)
        for _ in range(30):
            recruiter.enlist()
        with hooks._lock:  # as if another thread held it
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for _ in range(5):
                        recruiter.enlist()
                    status = 0 if hooks.flush(PATIENCE) else 2
                finally:
                    os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        redis = redis7.client()
        assert found(redis) == {"enlisted": 6}
        assert hooks.flush(PATIENCE)
        assert found(redis) == {"enlisted": 36}


class TestFaults:
    """A fault costs a line a minute and some counts at most, and counts nothing twice."""

    def test_a_dead_server(
        self,
        make: Callable[..., RecruitCounters],
        caplog: pytest.LogCaptureFixture,
        start_redis: Callable[..., RedisServer],
    ) -> None:
        server = start_redis(7)
        hooks = make(recruiter_of(), server.url)
        server.kill()
        with caplog.at_level(logging.ERROR, logger="workstealing"):
            for _ in range(5):
                hooks._recruiter.enlist()
                assert not hooks.flush(PATIENCE)
        assert len(caplog.records) == 1
        server.restart()
        assert hooks.flush(PATIENCE)
        counts = found(server.client())
        assert (counts["enlisted"], counts["worked sweep"]) == (5, 5)

    def test_counts_that_wait_are_bounded(
        self, make: Callable[..., RecruitCounters], caplog: pytest.LogCaptureFixture
    ) -> None:
        hooks = make(never(), f"redis://127.0.0.1:{free_port()}/0")
        for start in range(0, 4_000, 1_000):
            for number in range(start, start + 1_000):
                hooks.on_recruited(f"job-{number}")
            assert not hooks.flush(PATIENCE)
        assert len(hooks._batch.by_field) == 1_001
        assert hooks._batch.by_field["recruited _other"] == 3_000

    def test_a_fault_at_each_command_in_turn(
        self, make: Callable[..., RecruitCounters], redis7: RedisServer
    ) -> None:
        redis = redis7.client()
        with FaultyServer(redis7.port) as faulty:
            url = f"redis://127.0.0.1:{faulty.port}/0"
            whole = make(recruiter_of(), url)
            whole._recruiter.enlist()
            assert whole.flush(PATIENCE)
            names = faulty.names()
            assert (names[0], names[1], names[-2:]) == ("PING", "MULTI", ["EXPIRE", "EXEC"])
            assert faulty.connections == 1
            for kind in ("cut", "half", "garbage", "silent"):
                for at in range(1, len(names) + 1):
                    redis.delete(counters_key("app"))
                    faulty.reset()
                    faulty.fail(at, kind)
                    hooks = make(recruiter_of(), url)
                    hooks._recruiter.enlist()
                    assert not hooks.flush(PATIENCE), (kind, at)
                    # No second attempt by itself.
                    assert faulty.connections == 1
                    faulty.reset()
                    assert hooks.flush(PATIENCE)
                    count = found(redis).get("enlisted", 0)
                    assert count == 1 if at == 1 else count in {0, 1}, (kind, at)

    def test_what_the_server_refuses_is_kept(
        self, make: Callable[..., RecruitCounters], start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(7)
        redis = server.client()
        hooks = make(recruiter_of(), server.url)
        redis.config_set("maxmemory", 1)
        hooks._recruiter.enlist()
        assert not hooks.flush(PATIENCE)
        redis.config_set("maxmemory", 0)
        assert hooks.flush(PATIENCE)
        assert found(redis)["enlisted"] == 1

    def test_a_key_of_another_kind(
        self,
        make: Callable[..., RecruitCounters],
        redis7: RedisServer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        redis7.client().set(counters_key("app"), "somebody's")
        hooks = make(recruiter_of(), redis7.url)
        hooks._recruiter.enlist()
        assert not hooks.flush(PATIENCE)
        assert "WRONGTYPE" in caplog.text

    def test_no_address_in_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("WORKSTEALING_REDIS_URL", "REDIS_URL"):
            monkeypatch.delenv(name, raising=False)

        client = ClientSettings("support.spark_recruits:no_address")
        hooks = RecruitCounters(recruiter_of(), "app", client, 3600.0)
        monkeypatch.setattr("support.spark_recruits.no_address", connect, raising=False)
        hooks._recruiter.enlist()
        assert not hooks.flush(PATIENCE)
        assert "no Redis URL was given" in caplog.text
        assert hooks._batch.enlisted == 1


class TestTotals:
    """From fields to totals."""

    def test_fields(self) -> None:
        assert recruits_of({}) == Recruits(0, {})
        counts = {
            "enlisted": 7,
            "recruited a job": 2,
            "worked a job": 1,
            "idle a job": 1,
            "items a job": 5,
            "microseconds a job": 1_500_000,
            "later_figure a job": 9,
            "skipped b": 4,
        }
        assert recruits_of(counts) == Recruits(
            7,
            {
                "a job": JobTotals(recruited=2, worked=1, idle=1, items=5, seconds=1.5),
                "b": JobTotals(skipped=4),
            },
        )

    def test_the_drivers_own_counts_are_read_too(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from support import spark_recruits

        recruiter = recruiter_of()
        text = redis7.client(decode_responses=True)
        monkeypatch.setattr(spark_recruits, "make_mine", lambda: recruiter, raising=False)
        monkeypatch.setattr(spark_recruits, "connect_mine", lambda: text, raising=False)
        this = "support.spark_recruits"
        settings = EpilogueSettings(f"{this}:make_mine", f"{this}:connect_mine", "mine", 3600.0)
        monkeypatch.setattr(installing, "_installation", installing.Installation(settings))
        monkeypatch.setattr(workers, "_worker", None)
        for _ in range(3):
            workers.finish(settings)
        session: Any = None
        totals = recruits(session)
        assert (totals.enlisted, totals.jobs["sweep"].items) == (3, 9)
        # Other settings: what the last ones have counted is sent, and their hook ends.
        workers.finish(settings)
        another = recruiter_of()
        monkeypatch.setattr(spark_recruits, "make_mine", lambda: another)
        other = EpilogueSettings(f"{this}:make_mine", None, "other", 3600.0)
        workers.finish(other)
        assert recruits(session).enlisted == 4

    def test_without_counters(self, monkeypatch: pytest.MonkeyPatch) -> None:
        settings = EpilogueSettings("a:b", None, "app", 5.0)
        monkeypatch.setattr(installing, "_installation", installing.Installation(settings))
        session: Any = None
        with pytest.raises(ConfigurationError, match="counters=None"):
            recruits(session)
