"""The example does on one machine what its README says."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import dying_drivers
from support.pipeline_runs import EXAMPLES, PipelineRun
from support.servers import RedisServer

REAL_LOG = Path(__file__).resolve().parents[3] / "shared" / "data" / "apache_access.log.gz"
LINE = '127.0.0.1 - - [17/May/2015:10:05:{:02d} +0000] "GET {} HTTP/1.1" 200 1 "-" "-"\n'


def end_cleanly(run: PipelineRun) -> None:
    """Wait until nothing of an ended run is left."""
    run.wait_until_gone()
    assert run.left_behind() == []


@pytest.mark.slow
def test_the_paths_of_an_access_log_are_the_documents(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    paths = [f"/page/{number % 40}" for number in range(200)]
    log.write_text("".join(LINE.format(second % 60, path) for second, path in enumerate(paths)))
    options = ("--seconds", "5", "--access-log", str(log), "--pace", "40", "--batch", "30")
    with PipelineRun(*options) as run:
        assert run.ended() == 0, run.said
        assert "FAILED" not in run.said
        proved = run.said_after("proved: ")
        assert len(proved) == 5, run.said
        found = re.match(r"40 of 40 search rows .* \((\d+) changes\)", proved[0])
        assert found, run.said
        assert int(found[1]) > 0
        (enlisted,) = re.findall(r"enlisted: (\d+)", run.said)
        assert int(enlisted) > 0
        end_cleanly(run)


@pytest.mark.slow
def test_ctrl_c_ends_it_and_leaves_nothing() -> None:
    with PipelineRun("--seconds", "600") as run:
        # It has shown a line of its table.
        run.wait(lambda: re.search(r"second .*\n +\d+ ", run.said), "its first figures")
        run.process.send_signal(signal.SIGINT)
        assert run.ended(60) == 1, run.said
        assert "stopped before the end: nothing is proved" in run.said
        assert "Traceback" not in run.said
        end_cleanly(run)


def test_what_is_no_access_log_is_refused_before_anything_starts(tmp_path: Path) -> None:
    log = tmp_path / "notes"
    log.write_text("these are\nno requests\n")
    with PipelineRun("--access-log", str(log)) as run:
        assert run.ended(60) == 1
        assert "is no access log" in run.said
        assert "PostgreSQL" not in run.said
        end_cleanly(run)


def test_a_cluster_needs_servers_that_its_workers_know() -> None:
    with PipelineRun(
        "--master", "spark://127.0.0.1:1", environment={"PIPELINE_DATABASE": ""}
    ) as run:
        assert run.ended(60) == 1
        assert "PIPELINE_DATABASE" in run.said


@pytest.fixture
def at_home(
    monkeypatch: pytest.MonkeyPatch, pipeline_database: str, redis7: RedisServer
) -> Iterator[None]:
    """Let the example's modules work in this process, without Spark."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PIPELINE_DATABASE", pipeline_database)
    monkeypatch.setenv("WORKSTEALING_REDIS_URL", redis7.url)
    from spark_pipeline import documents, parts

    documents.create_tables()
    parts.parts.cache_clear()
    yield
    parts.parts.cache_clear()


@pytest.mark.usefixtures("at_home")
def test_a_task_that_comes_late_brings_no_old_version_back() -> None:
    from spark_pipeline import indexing, parts

    with parts.open_database() as database:
        indexing.write_search_rows(database, [("/a", 2, "title", "second")])
        indexing.write_search_rows(database, [("/a", 1, "title", "first")])
        rows = database.execute("SELECT id, version, body, words::text FROM search").fetchall()
        assert rows == [("/a", 2, "second", "'second':2 'titl':1")]
        indexing.write_search_rows(database, [("/a", 3, "title", "third")])
        rows = database.execute("SELECT version, body FROM search").fetchall()
        assert rows == [(3, "third")]


@pytest.mark.usefixtures("at_home")
def test_the_page_finds_documents_and_lets_none_speak_html() -> None:
    from spark_pipeline import indexing, parts, web

    mine = parts.parts()
    evil = "/<script>alert(1)</script>"
    with parts.open_database() as database:
        indexing.write_search_rows(
            database, [(evil, 7, "<u>", "a harbour <b> and \x02 a raven"), ("/b", 1, "b", "b")]
        )
    (summary, *_) = indexing.summaries_of([(evil, 7, "", "a harbour")]).to_dict("records")
    mine.summaries.hsetex(summary["key"], mapping={summary["field"]: summary["value"]}, ex=60)
    mine.behind.track(evil)
    page = web.create_app(mine).test_client()

    found = page.get("/", query_string={"q": "harbour\0"}).text
    assert "1 of 2 documents" in found
    assert "<mark>harbour</mark>" in found
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, version 7" in found
    assert "headline\n  a harbour ..." in found
    assert "is being worked on" in found
    assert "<script>" not in found
    assert "<u>" not in found
    assert "<b>" not in found

    nothing = page.get("/", query_string={"q": 'zebra" <i>'}).text
    assert "0 of 2 documents" in nothing
    assert "<i>" not in nothing
    assert "2 documents" in page.get("/").text


@pytest.mark.slow
@pytest.mark.usefixtures("at_home")
def test_no_search_row_is_missing_when_the_driver_is_killed_at_each_phase(tmp_path: Path) -> None:
    """SIGKILL of driver after driver on one checkpoint, started again at once by nobody's hand."""
    from spark_pipeline import documents, parts

    ids, mine = documents.made_up_ids(150), parts.parts()
    drivers = dying_drivers.Drivers(
        Path(__file__).with_name("pipeline_query.py"),
        [str(tmp_path / "checkpoint"), "20"],
        tmp_path / "log",
        {"PYTHONPATH": str(EXAMPLES)},
    )

    def left() -> int:
        with parts.open_database() as database:
            (behind,) = database.execute("SELECT count(*) FROM behind").fetchone() or (0,)
        return int(behind) + int(mine.dirty.stats()["total_size"])

    with documents.Application(mine, ids, ids, pace=5.0) as application:
        for phase in (
            dying_drivers.FIRST_RESERVED,
            dying_drivers.READ,
            dying_drivers.SUNK,
            dying_drivers.ACKNOWLEDGED,
            dying_drivers.RESERVED,
        ):
            drivers.killed_at(phase)
            assert left() > 0
        application.stop()
        assert application.problem is None
        assert application.changes > 0
    drivers.work(until=lambda: left() == 0)
    with parts.open_database() as database:
        rows = database.execute(
            "SELECT documents.version, search.version,"
            " search.words = to_tsvector('english', documents.title || ' ' || documents.body)"
            " FROM documents LEFT JOIN search USING (id)"
        ).fetchall()
    assert len(rows) == len(ids)
    assert all(version == indexed and is_right for version, indexed, is_right in rows)
    for shard in mine.dirty.stats()["shards"]:
        assert (shard["pset_size"], shard["cset_size"], shard["dead_size"]) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_LOG.exists(), reason=f"{REAL_LOG} is not on this machine")
def test_a_real_log_gives_its_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from spark_pipeline import run

    options = run.arguments().parse_args(["--access-log", str(REAL_LOG)])
    ids, visits = run.what_happens(options)
    assert len(ids) == len(set(ids)) == len(set(visits)) > 1000
    assert len(visits) > 9000
