"""register(spark, check=True): each executor says what it lacks, without any secret."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from pyspark.cloudpickle import dumps

from support.servers import RedisServer
from support.spark_cluster import StandaloneCluster
from support.spark_ways import SITE, environment_in
from workstealing.errors import ConfigurationError
from workstealing.spark import checking, making, register
from workstealing.spark.checking import (
    ExecutorCheck,
    asked,
    check_executors,
    check_of,
    check_of_error,
    looking,
    require_executors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT = "workstealing:connect"
SECRET = "pw-Rk27%40vd"


def said(**more: Any) -> dict[str, Any]:
    """Return what a task of a healthy executor says."""
    whole = {"place": "a (/x)", "python": "/bin/python3 (3.11.7)", "has_url": True, "missing": []}
    return {**whole, "answer": (True, ""), **more}


class TestTheTask:
    def test_a_healthy_process(self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checking, "_TASK_SECONDS", 0.0)
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
        found = check_of(looking(DEFAULT)(None))
        assert found.is_well
        assert found.python.startswith(sys.executable)
        assert (found.has_package, found.has_url, found.redis_answers) == (True, True, True)
        assert found.problem == ""

    def test_a_python_without_the_package_answers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "_TASK_SECONDS", 0.0)
        for name in ("pyspark", "py4j"):
            (tmp_path / name).symlink_to(SITE / name)
        # A checkout in the driver's folder: Python takes it for a package with nothing in it.
        (tmp_path / "workstealing").mkdir()
        program = (
            f"import json, sys; sys.path[:0] = [{str(tmp_path)!r}]\n"
            "from pyspark.cloudpickle import loads\n"
            f"print(json.dumps(loads({dumps(looking(DEFAULT))!r})(None)))"
        )
        done = subprocess.run(
            [sys.executable, "-S", "-P", "-c", program],
            env={"WORKSTEALING_REDIS_URL": f"redis://:{SECRET}@127.0.0.1:1/0"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert SECRET not in done.stdout
        answer = json.loads(done.stdout)
        assert answer["missing"] == ["workstealing", "redis", "pyarrow"]
        found = check_of(answer)
        assert (found.has_package, found.has_url, found.redis_answers) == (False, True, None)
        assert found.is_well is False
        assert "has no workstealing, redis, pyarrow: set PYSPARK_PYTHON" in found.problem

    def test_another_release_is_missing(
        self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "_TASK_SECONDS", 0.0)
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
        look = looking(DEFAULT)
        monkeypatch.setattr("workstealing.__version__", "0.0.1")
        assert "has no release " in check_of(look(None)).problem

    def test_without_an_address_the_variables_are_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checking, "_TASK_SECONDS", 0.0)
        monkeypatch.delenv("WORKSTEALING_REDIS_URL", raising=False)
        monkeypatch.delenv("REDIS_URL", raising=False)
        found = check_of(looking(DEFAULT)(None))
        assert (found.has_package, found.has_url, found.redis_answers) == (True, False, None)
        assert "neither WORKSTEALING_REDIS_URL nor REDIS_URL is set" in found.problem
        # A function of the user's own needs neither.
        own = check_of(said(has_url=None))
        assert own.is_well
        assert own.has_url is None


class TestRedis:
    @pytest.fixture(autouse=True)
    def without_clients(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Forget the clients of this process, which has one address after the other."""
        monkeypatch.setattr(making, "_clients", {})
        monkeypatch.setattr(making, "_making", {})

    def test_nobody_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", f"redis://:{SECRET}@127.0.0.1:1/0")
        answers, problem = asked(DEFAULT)
        assert answers is False
        assert problem.startswith("Redis does not answer (")
        assert "127.0.0.1:1" in problem
        assert SECRET not in problem

    def test_a_wrong_password(self, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        url = f"redis://nobody:{SECRET}@127.0.0.1:{redis7.port}/0"
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", url)
        assert asked(DEFAULT) == (False, "Redis refuses the name or the password that it is given")

    def test_a_malformed_url_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", f"nonsense://:{SECRET}@somewhere")
        answers, problem = asked(DEFAULT)
        assert answers is False
        assert problem
        assert SECRET not in problem

    @pytest.mark.parametrize(
        ("error", "answer", "text"),
        [
            (redis.exceptions.NoPermissionError("no ping"), True, ""),
            (redis.exceptions.TimeoutError("late"), None, "has not answered in time"),
            (KeyError("pw-Rk27@vd"), None, "could not be asked (KeyError), so nobody knows"),
            (ConnectionError("to pw-Rk27@vd, redis://:x@y"), False, "(to <a password>, <a URL>)"),
        ],
    )
    def test_other_errors(
        self, monkeypatch: pytest.MonkeyPatch, error: Exception, answer: bool | None, text: str
    ) -> None:
        def connected(_: object) -> None:
            raise error

        monkeypatch.setenv("WORKSTEALING_REDIS_URL", f"redis://:{SECRET}@127.0.0.1:1/0")
        monkeypatch.setattr(checking.ClientSettings, "connected", connected)
        answers, problem = asked(DEFAULT)
        assert answers is answer
        assert text in problem
        assert "vd" not in problem


class TestTheWhole:
    def test_problems_are_one_sentence_each(self, caplog: pytest.LogCaptureFixture) -> None:
        away = (False, "Redis does not answer (x)")
        checks = [
            check_of(said()),
            check_of(said(place="b", answer=away)),
            check_of(said(place="c", answer=away)),
            check_of(said(place="d", answer=(None, "nobody knows"))),
        ]
        with caplog.at_level(logging.INFO), pytest.raises(ConfigurationError) as raised:
            require_executors(checks)
        assert str(raised.value) == "on b, c: Redis does not answer (x)"
        assert [each.levelno for each in caplog.records] == [logging.INFO, logging.WARNING]
        assert caplog.messages[1] == "on d: nobody knows"
        require_executors([checks[0], checks[3]])

    @pytest.mark.parametrize(
        ("text", "has_package", "problem"),
        [
            (
                (
                    "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than"
                    " that in driver: 3.11, PySpark cannot run with different minor versions."
                ),
                False,
                "the executors' Python is 3.9 and the driver's 3.11: set PYSPARK_PYTHON",
            ),
            (
                'java.io.IOException: Cannot run program "python9": error=2',
                False,
                "an executor finds no program python9: set PYSPARK_PYTHON",
            ),
            (
                (
                    "An error occurred while calling z:x.\n: org.apache.spark.SparkException: Job 0"
                    " cancelled redis://:secret@host\n\tat x"
                ),
                None,
                (
                    "so nobody knows what they have (RuntimeError: SparkException: Job 0 cancelled"
                    " <a URL>)"
                ),
            ),
            ("", None, "so nobody knows what they have (RuntimeError: )"),
        ],
    )
    def test_the_end_of_the_job(self, text: str, has_package: bool | None, problem: str) -> None:
        found = check_of_error(RuntimeError(text))
        assert found.has_package is has_package
        assert problem in found.problem
        assert found.is_well is has_package

    def test_executors_without_a_task_are_unknown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tasks: list[int] = []

        def run_each(_: object, items: list[None], look: object) -> list[dict[str, Any]]:
            tasks.append(len(items))
            return [said()] * len(items)

        monkeypatch.setattr(checking, "executors_of", lambda _: 3)
        monkeypatch.setattr(checking, "cores_of", lambda _: 2)
        monkeypatch.setattr(checking, "is_remote", lambda _: True)
        monkeypatch.setattr(checking, "run_each", run_each)
        session: Any = FakeSession()
        well, unheard = check_executors(session)
        assert tasks == [3, 6, 12]
        assert well.is_well
        assert unheard.is_well is None
        assert unheard.problem.startswith("2 of 3 executors had no task")


class FakeSession:
    """What `named` asks of a session, as far as a check goes."""

    sparkContext: Any = property(lambda self: self)  # noqa: N815

    def getLocalProperty(self, _: str) -> None:  # noqa: N802
        """Return none."""

    def setLocalProperty(self, *_: object) -> None:  # noqa: N802
        """Do nothing."""

    def setJobGroup(self, *_: object) -> None:  # noqa: N802
        """Do nothing."""


def test_a_local_session(
    spark: SparkSession, redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="neither WORKSTEALING_REDIS_URL nor REDIS_URL"):
        register(spark, check=True)
    environment: Any = spark.sparkContext.environment
    monkeypatch.setitem(environment, "WORKSTEALING_REDIS_URL", redis7.url)
    (found,) = register(spark, check=True)
    assert found.is_well
    assert found.has_url
    assert register(spark) == []
    # A worker that ended badly is an answer, too.
    with pytest.raises(ConfigurationError, match="no function"):
        register(spark, check=True, client="workstealing:__version__")


DRIVER = """
import sys
from support.spark_jvms import EXECUTORS, builder
from workstealing.spark import register

spark = builder(sys.argv[1]).config(map=EXECUTORS).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    for each in register(spark, check=True):
        print("CHECK", each, flush=True)
except Exception as error:
    print("REFUSED", type(error).__name__, error, flush=True)
spark.stop()
"""


@pytest.mark.spark_cluster
def test_a_cluster_without_and_with_the_package(
    spark_cluster: Callable[..., StandaloneCluster], redis7: RedisServer, tmp_path: Path
) -> None:
    client = redis7.client()
    client.acl_setuser(
        "tasks", enabled=True, passwords=["+pw-Rk27@vd"], keys="*", commands=["+@all"]
    )
    url = f"redis://tasks:{SECRET}@127.0.0.1:{redis7.port}/0"
    cluster = spark_cluster(workers=2, cores=1, environment={"WORKSTEALING_REDIS_URL": url})

    def run(python: str | Path) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", DRIVER, cluster.url],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
                "PYSPARK_PYTHON": str(python),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        for secret in (SECRET, "pw-Rk27@vd"):
            assert secret not in done.stdout + done.stderr
        return done.stdout

    try:
        well = [each for each in run(sys.executable).splitlines() if each.startswith("CHECK")]
        assert len(well) == 2
        assert all("has_package=True, has_url=True, redis_answers=True" in each for each in well)
        (refused,) = run(environment_in(tmp_path / "bare")).splitlines()
        assert refused.startswith("REFUSED ConfigurationError on ")
        assert "has no workstealing, redis, pyarrow: set PYSPARK_PYTHON" in refused
        assert len(refused) < 600
    finally:
        client.acl_deluser("tasks")


def test_the_states_of_a_check() -> None:
    assert ExecutorCheck("a", has_package=True, redis_answers=True).is_well
    assert ExecutorCheck("a", has_package=True).is_well is None
    assert ExecutorCheck("a", has_package=True, has_url=True, redis_answers=False).is_well is False
