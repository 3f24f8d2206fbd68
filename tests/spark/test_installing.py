"""install(): what it sets, what it refuses, and that it changes nothing when it refuses."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from workstealing.errors import ConfigurationError
from workstealing.spark import accumulated, install, installing, recruits
from workstealing.spark.daemon import MODULE, SETTING
from workstealing.spark.workers import VARIABLE, EpilogueSettings

FACTORY = "package.module:make"


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installing, "_installation", None)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> SparkSession.Builder:
    """A builder in a process that runs no application."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    return SparkSession.builder


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, whose environment is put back afterwards."""
    environment = spark.sparkContext.environment
    before = dict(environment)
    yield spark
    environment.clear()
    environment.update(before)


def settings_in(text: str) -> EpilogueSettings:
    return EpilogueSettings(**json.loads(text))


class TestBuilder:
    """Before the application starts."""

    def test_settings_go_to_the_executors_environment(self, builder: SparkSession.Builder) -> None:
        every = timedelta(seconds=2)
        given = {"counters": "package.module:client", "interval": every}
        assert install(builder, FACTORY, **given) is builder
        settings = settings_in(builder._options[f"spark.executorEnv.{VARIABLE}"])
        assert settings.factory == FACTORY
        assert settings.counters == "package.module:client"
        assert settings.interval == 2.0
        assert settings.application.startswith("workstealing-")
        assert installing.installed().settings == settings
        assert SETTING not in builder._options

    def test_two_applications_do_not_share_their_counters(
        self, builder: SparkSession.Builder
    ) -> None:
        install(builder, FACTORY)
        first = installing.installed().settings.application
        install(builder, FACTORY)
        assert installing.installed().settings.application != first

    def test_every_task_names_the_daemon(self, builder: SparkSession.Builder) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            install(builder, FACTORY, every_task=True)
        assert builder._options[SETTING] == MODULE

    @pytest.mark.parametrize("version", ["3.4.0", "4.4.0", "5.0.0.dev1", "4.30.0", ""])
    def test_every_task_on_a_version_that_nobody_has_tested(
        self, builder: SparkSession.Builder, version: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pyspark, "__version__", version)
        with pytest.warns(UserWarning, match="was not tested with Spark") as caught:
            install(builder, FACTORY, every_task=True)
        assert len(caught) == 1
        assert caught[0].filename == __file__
        assert SETTING not in builder._options
        # All else is there.
        assert f"spark.executorEnv.{VARIABLE}" in builder._options

    def test_no_secret_is_in_the_configuration(
        self, builder: SparkSession.Builder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", "redis://:hush-hush@db.internal/0")
        install(builder, FACTORY, every_task=True)
        shown = str(builder._options)
        assert "hush-hush" not in shown
        assert "db.internal" not in shown

    def test_accumulate_needs_a_session(self, builder: SparkSession.Builder) -> None:
        with pytest.raises(ConfigurationError, match=r"call install\(spark, \.\.\.\) after"):
            install(builder, FACTORY, accumulate=True)
        assert builder._options == {}
        assert installing._installation is None

    def test_every_task_beside_a_running_application(self, session: SparkSession) -> None:
        builder = SparkSession.builder
        with pytest.raises(ConfigurationError, match="comes too late"):
            install(builder, FACTORY, every_task=True)
        assert builder._options == {}
        # Without it, the running application is told as well, for getOrCreate() returns that one.
        install(builder, FACTORY)
        told = settings_in(session.sparkContext.environment[VARIABLE])
        assert told == installing.installed().settings


class TestSession:
    """While the application runs."""

    def test_settings_go_to_new_workers(self, session: SparkSession) -> None:
        assert install(session, FACTORY, counters=None) is session
        settings = settings_in(session.sparkContext.environment[VARIABLE])
        application = session.sparkContext.applicationId
        assert settings == EpilogueSettings(FACTORY, None, application, 5.0)
        assert FACTORY not in str(session.sparkContext.getConf().getAll())

    def test_every_task_needs_the_builder(self, session: SparkSession) -> None:
        with pytest.raises(ConfigurationError, match=r"every_task=True needs SparkSession\.bui"):
            install(session, FACTORY, every_task=True)
        assert VARIABLE not in session.sparkContext.environment
        assert installing._installation is None

    def test_accumulators_stay_the_same(self, session: SparkSession) -> None:
        with pytest.raises(ConfigurationError, match=r"call workstealing\.spark\.install"):
            accumulated(session)
        install(session, FACTORY)
        with pytest.raises(ConfigurationError, match="accumulate=True"):
            accumulated(session)
        install(session, FACTORY, accumulate=True)
        first = installing.installed().accumulator
        assert accumulated(session).enlisted == 0
        install(session, "package.other:make", accumulate=True)
        assert installing.installed().accumulator is first

    def test_a_session_that_has_been_stopped(
        self, session: SparkSession, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(session, FACTORY)
        stopped: Any = type("Context", (), {"_jsc": None})()
        installation = installing.installed()
        monkeypatch.setattr(
            installing,
            "_installation",
            installing.Installation(installation.settings, stopped),
        )
        for ask in (recruits, accumulated):
            with pytest.raises(ConfigurationError, match="has been stopped"):
                ask(session)

    def test_another_session_than_the_installed_one(self, session: SparkSession) -> None:
        install(session, FACTORY)
        other: Any = type("Session", (), {"sparkContext": object()})()
        with pytest.raises(ConfigurationError, match="another session"):
            recruits(other)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"factory": "make"}, "the recruiter's factory is 'make'"),
        ({"factory": "__main__:make"}, "executors have another __main__"),
        ({"factory": len}, "give the import path"),
        ({"counters": "redis://:hush@host"}, "the counters' client is a URL: give the import path"),
        ({"interval": 0}, "give a number of seconds"),
        ({"interval": "often"}, "give a number of seconds"),
        ({"spark_or_builder": None}, "expects a SparkSession, or SparkSession.builder"),
    ],
)
def test_bad_arguments(
    builder: SparkSession.Builder, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        install(**{"spark_or_builder": builder, "factory": FACTORY, **arguments})
    assert builder._options == {}
    assert installing._installation is None
