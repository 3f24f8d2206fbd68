"""Old versions of PySpark: what takes the place of the classes that they lack; and `register`."""

from __future__ import annotations

import importlib.util
import logging
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyspark
import pyspark.sql.datasource
import pytest

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.spark import register
from workstealing.spark.sources import compat

LIMITS = "pyspark.sql.streaming.datasource"
FORMATS = [
    "workstealing.ick",
    "workstealing.volatile_hashes",
    "workstealing.log",
    "workstealing.tracked_set",
    "workstealing.redis",
]


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as PySpark 4.0 and 4.1 have it."""
    # None: an import fails, as that of a missing module does.
    monkeypatch.setitem(sys.modules, LIMITS, None)
    monkeypatch.delattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", raising=False)
    spec = importlib.util.spec_from_file_location("compat_of_old", compat.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def reader_of(old: ModuleType) -> Any:
    """Return a reader that is written for limits: numbers, three a batch, up to `end`."""

    class Numbers(old.DataSourceStreamReader, old.SupportsTriggerAvailableNow):  # type: ignore[name-defined, misc]
        end = 7

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"n": 0}

        def getDefaultReadLimit(self) -> Any:  # noqa: N802
            return old.ReadMaxRows(3)

        def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
            n = min(self.end, start["n"] + limit.max_rows)
            return start if n == start["n"] else {"n": n}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
            return list(range(start["n"], end["n"]))

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            yield (partition,)

    return Numbers()


class TestStreamReader:
    def test_a_new_query_goes_on_where_it_stood(self, old: ModuleType) -> None:
        reader = reader_of(old)
        assert reader.latestOffset() == {"n": 3}
        # Spark asks for the first one again when it plans the first batch.
        assert reader.initialOffset() == {"n": 0}
        assert reader.partitions({"n": 0}, {"n": 3}) == [0, 1, 2]
        assert reader.latestOffset() == {"n": 6}
        # Whether or not a batch was planned meanwhile.
        assert reader.latestOffset() == {"n": 7}
        assert reader.partitions({"n": 6}, {"n": 7}) == [6]
        assert reader.latestOffset() == {"n": 7}

    def test_a_restart_begins_at_the_last_batch(self, old: ModuleType) -> None:
        reader = reader_of(old)
        # This is how Spark names the last offset of a checkpoint.
        assert reader.partitions({"n": 3}, {"n": 3}) == []
        assert reader.latestOffset() == {"n": 6}

    def test_a_batch_that_was_cut_short_is_planned_again(self, old: ModuleType) -> None:
        reader = reader_of(old)
        reader.partitions({"n": 3}, {"n": 3})
        reader.initialOffset()
        assert reader.partitions({"n": 0}, {"n": 3}) == [0, 1, 2]
        assert reader.latestOffset() == {"n": 6}

    def test_it_is_asked_with_a_start_and_a_limit_as_well(self, old: ModuleType) -> None:
        reader = reader_of(old)
        assert reader.latestOffset({"n": 2}, old.ReadMaxRows(1)) == {"n": 3}
        assert reader.latestOffset() == {"n": 3}

    def test_without_a_limit_of_its_own_it_reads_all(self, old: ModuleType) -> None:
        class Reader(old.DataSourceStreamReader):  # type: ignore[name-defined, misc]
            def initialOffset(self) -> dict[str, int]:  # noqa: N802
                return {"n": 0}

            def latestOffset(self, start: Any, limit: Any) -> Any:  # noqa: N802
                return {"limit": type(limit).__name__}

            def read(self, partition: Any) -> Iterator[Any]:
                yield from ()

        assert isinstance(Reader().getDefaultReadLimit(), old.ReadAllAvailable)
        assert Reader().latestOffset() == {"limit": old.ReadAllAvailable.__name__}


class TestStreamWriter:
    def test_it_is_what_an_old_worker_hands_batches_to(self, old: ModuleType) -> None:
        class Sink:
            def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
                return [batch.num_rows for batch in iterator]

        class Writer(Sink, old.DataSourceStreamArrowWriter):  # type: ignore[name-defined, misc]
            """As the formats have them."""

        writer = Writer()
        assert isinstance(writer, pyspark.sql.datasource.DataSourceStreamWriter)
        assert isinstance(writer, pyspark.sql.datasource.DataSourceArrowWriter)
        assert writer.write(iter([pa.record_batch([pa.array([1, 2])], ["n"])])) == [2]
        # As of a stream's writer, not of a table's, which knows no batch.
        writer.commit([None], 7)
        writer.abort([None], 7)

    def test_every_class_that_the_formats_take_is_there(self, old: ModuleType) -> None:
        assert not old.HAS_READ_LIMITS
        for name in compat.__all__:
            assert hasattr(old, name), name


def test_this_pyspark_has_its_own_classes() -> None:
    if not compat.HAS_READ_LIMITS:
        pytest.skip(f"PySpark {pyspark.__version__} has no read limits")
    from pyspark.sql.streaming import datasource

    assert compat.ReadMaxRows is datasource.ReadMaxRows
    assert compat.SupportsTriggerAvailableNow is datasource.SupportsTriggerAvailableNow
    assert compat.DataSourceStreamReader is pyspark.sql.datasource.DataSourceStreamReader
    assert pickle.loads(pickle.dumps(compat.ReadMaxRows(3))).max_rows == 3


class Session:
    """A session that notes what is registered."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.dataSource = self

    def register(self, source: Any) -> None:
        self.names.append(source.name())

    def createDataFrame(self, rows: list[Any], schema: str) -> None:  # noqa: N802
        """Become the thread's active session."""


class TestRegister:
    def test_all_formats(self, caplog: pytest.LogCaptureFixture) -> None:
        session: Any = Session()
        register(session)
        register(session)
        assert session.names == FORMATS * 2
        if compat.HAS_READ_LIMITS:
            assert caplog.records == []

    def test_a_format_that_cannot_be_imported_is_left_out_in_words(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "workstealing.spark.sources.log", None)
        session: Any = Session()
        register(session)
        assert session.names == [name for name in FORMATS if name != "workstealing.log"]
        said = [each for each in caplog.records if "left out" in each.getMessage()]
        (record,) = said
        assert record.levelno == logging.WARNING
        text = record.getMessage()
        assert text.startswith("format 'workstealing.log' is left out: PySpark ")
        assert "pip install -U 'workstealing[spark]'" in text

    def test_streams_that_are_bounded_by_options_alone_are_named(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(compat, "HAS_READ_LIMITS", False)
        register(Session())  # type: ignore[arg-type]
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 3
        assert "'workstealing.ick'" in said[0]
        assert "at most maxMembersPerTrigger" in said[0]
        assert "'workstealing.log'" in said[1]
        assert "PySpark 4.2 or newer" in said[1]
        assert "at most maxOffsetsPerTrigger" in said[2]

    def test_without_data_sources_the_sentence_names_the_version(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Finder:
            @staticmethod
            def find_spec(name: str, *_: object) -> None:
                if name == "pyspark.sql.datasource":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        monkeypatch.delitem(sys.modules, "pyspark.sql.datasource")
        monkeypatch.delattr(pyspark.sql, "datasource")
        monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
        monkeypatch.setattr(pyspark, "__version__", "3.5.9")
        session: Any = Session()
        with pytest.raises(ConfigurationError, match=r"PySpark 4\.0 or newer, and this is 3\.5\.9"):
            register(session)
        assert session.names == []

    def test_without_pyspark_the_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyspark", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[spark\]'"):
            register(Session())  # type: ignore[arg-type]
