"""A session of Spark Connect without its server: what is asked of it, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps, loads
from pyspark.sql import Row, SparkSession

from support import spark_recruits
from workstealing import Recruiter
from workstealing.errors import ConfigurationError
from workstealing.spark import (
    accumulated,
    checking,
    enlist_batch,
    enlisting,
    install,
    installing,
    recruits,
    workers,
)
from workstealing.spark.sessions import (
    cores_of,
    is_remote,
    named,
    optimized_plan,
    run_each,
    will_be_remote,
)
from workstealing.testing import always

FACTORY = "support.spark_recruits:make_counted"


class Frame:
    """A range of numbers, a partition each, as run_each asks for it; the tasks end in disorder."""

    def __init__(self, count: int, partitions: int) -> None:
        assert count == partitions
        self.count_ = count

    def mapInArrow(self, run: Callable[..., Iterator[Any]], schema: str) -> Frame:  # noqa: N802
        assert schema == "position long, result binary"
        # As executors get it.
        self.run = loads(dumps(run))
        return self

    def collect(self) -> list[Row]:
        rows = []
        for number in reversed(range(self.count_)):
            batch = pa.record_batch([pa.array([number], pa.int64())], ["id"])
            for done in self.run(iter([batch])):
                rows += [Row(**each) for each in done.to_pylist()]
        return rows

    def selectExpr(self, expression: str) -> Frame:  # noqa: N802
        assert "spark_partition_id()" in expression
        return self

    def distinct(self) -> Frame:
        return self

    def count(self) -> int:
        return 6


class Remote:
    """A session of Spark Connect, as far as it is asked."""

    def __init__(self) -> None:
        self.tags: set[str] = {"the application's"}
        self.is_stopped = False

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        raise AttributeError("Attribute `sparkContext` is not supported in Spark Connect")

    def range(self, start: int, stop: int = 0, step: int = 1, partitions: int = 0) -> Frame:
        return Frame(stop, partitions)

    def getTags(self) -> set[str]:  # noqa: N802
        return set(self.tags)

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tags.add(tag)

    def removeTag(self, tag: str) -> None:  # noqa: N802
        self.tags.remove(tag)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session, in a process that has loaded Spark Connect."""
    module: Any = ModuleType("pyspark.sql.connect.session")
    module.SparkSession = Remote
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(installing, "_installation", None)
    return Remote()


class TestAsking:
    def test_a_session_is_known(self, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        assert is_remote(remote)
        assert not is_remote(object())
        monkeypatch.delitem(sys.modules, "pyspark.sql.connect.session")
        assert not is_remote(remote)

    def test_each_item_has_a_task_and_results_come_in_order(self, remote: Any) -> None:
        items = ["c", "a", "b"]
        assert run_each(remote, items, lambda item: (item, len(item))) == [
            ("c", 1),
            ("a", 1),
            ("b", 1),
        ]
        assert cores_of(remote) == 6

    def test_executors_are_asked(self, remote: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checking, "_TASK_SECONDS", 0.0)
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", "redis://:hidden@127.0.0.1:1/0")
        # How many executors there are, nobody tells; all tasks here are of one.
        (found,) = checking.check_executors(remote)
        assert (found.has_package, found.has_url, found.redis_answers) == (True, True, False)
        assert "hidden" not in repr(found)
        assert remote.tags == {"the application's"}

    def test_stages_have_a_tag_meanwhile(self, remote: Any) -> None:
        with named(remote, "ours", "a sweep"):
            assert remote.tags == {"ours", "the application's"}
        assert remote.tags == {"the application's"}
        with pytest.raises(ZeroDivisionError), named(remote, "ours", "a sweep"):
            raise ZeroDivisionError
        assert remote.tags == {"the application's"}
        with named(remote, "the application's", "a sweep"):
            pass
        assert remote.tags == {"the application's"}

    def test_the_plan_is_the_optimized_one(self) -> None:
        class Table:
            def _explain_string(self, extended: bool) -> str:
                assert extended
                return (
                    "== Analyzed Logical Plan ==\nLocalRelation\n"
                    "== Optimized Logical Plan ==\nInMemoryRelation [id]\n"
                    "== Physical Plan ==\nInMemoryTableScan"
                )

        table: Any = Table()
        assert optimized_plan(table).strip() == "InMemoryRelation [id]"


class TestInstalling:
    @pytest.fixture
    def recruiter(self, monkeypatch: pytest.MonkeyPatch) -> Recruiter:
        """The recruiter of this process, as the factory returns it."""
        made = always(seconds=5)
        made.job(rate=1.0, name="count")(lambda slice: 1)
        monkeypatch.setattr(workers, "_worker", None)
        monkeypatch.setattr(spark_recruits, "make_counted", lambda: made, raising=False)
        return made

    def test_settings_go_with_each_function(self, remote: Any, recruiter: Recruiter) -> None:
        assert install(remote, FACTORY, counters=None) is remote
        task = dumps(enlisting(iter))
        batch = dumps(enlist_batch(lambda frame, number: number))
        # In a process of the server nobody has called install().
        installing._installation = None
        assert list(loads(task)([1, 2])) == [1, 2]
        assert loads(batch)(None, 7) == 7
        assert recruiter.stats()["enlisted"] == 2

    def test_a_servers_process_sends_its_counts_after_each_batch(
        self, remote: Any, recruiter: Recruiter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flushed: list[bool] = []
        monkeypatch.setattr(workers.WorkerRecruiter, "flush", lambda self: flushed.append(True))
        install(remote, FACTORY, counters=None)
        here = enlist_batch(lambda frame, number: number)
        assert here(None, 1) == 1
        # This process goes on, and its own thread sends them.
        assert flushed == []
        assert loads(dumps(here))(None, 2) == 2
        assert flushed == [True]

    @pytest.mark.parametrize("option", ["every_task", "accumulate"])
    def test_what_it_cannot_carry_is_refused(self, remote: Any, option: str) -> None:
        builder = SparkSession.Builder().remote("sc://127.0.0.1:1")
        assert will_be_remote(builder)
        for target in (remote, builder):
            with pytest.raises(ConfigurationError, match=f"{option}=True needs a SparkSession"):
                install(target, FACTORY, **{option: True})
        with pytest.raises(ConfigurationError, match=r"call workstealing\.spark\.install\(spark"):
            installing.installed()

    def test_a_builder_of_remote_sessions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(installing, "_installation", None)
        builder = SparkSession.Builder().remote("sc://127.0.0.1:1")
        install(builder, FACTORY)
        # Executors of a server do not read what its client says.
        assert list(builder._options) == ["spark.remote"]
        assert installing.installed().settings.factory == FACTORY
        assert not will_be_remote(SparkSession.Builder())
        monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
        assert will_be_remote(SparkSession.Builder())

    def test_totals(self, remote: Any) -> None:
        install(remote, FACTORY, counters=None)
        with pytest.raises(ConfigurationError, match="no counters to read"):
            recruits(remote)
        with pytest.raises(ConfigurationError, match=r"no accumulators; use recruits\(\)"):
            accumulated(remote)
        with pytest.raises(ConfigurationError, match="for another session than this one"):
            recruits(Remote())  # type: ignore[arg-type]
        remote.is_stopped = True
        with pytest.raises(ConfigurationError, match="a session that has been stopped"):
            recruits(remote)
