"""The example examples/archive tells the whole story, and proves it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from support.pipeline_runs import StoryRun


def numbers(run: StoryRun) -> dict[str, list[int]]:
    """Return the numbers of each row of the table of facts."""
    _, _, table = run.said.partition("\n\n")
    rows = re.findall(r"^ *(\S.*?)  (\d.*)$", table, re.M)
    return {name: [int(each) for each in re.findall(r"\b\d+\b", value)] for name, value in rows}


@pytest.mark.slow
def test_the_story_is_told_and_nothing_is_lost() -> None:
    with StoryRun() as run:
        assert run.ended(400) == 0, run.said
        assert "FAILED" not in run.said
        assert "Traceback" not in run.said
        assert len(re.findall("^ +proved: ", run.said, re.M)) == 9, run.said
        assert re.search(r"KILLED web worker \d+: its page is not marked", run.said), run.said
        assert re.search(r"KILLED Spark driver \d+: it had reserved \d+ pages", run.said), run.said
        facts = numbers(run)
        assert facts["lost"] == [0]
        assert facts["killed"][0] == 2
        _, web, spark = facts["recruits"]
        assert web > 0
        assert spark > 0
        assert facts["requests"] > facts["hits, which enlist"] > [0]
        assert facts["documents indexed"] == [152]
        # What the two dead had in their hands.
        assert facts["hash fields expired"][0] > 0
        assert facts["reservations returned"][0] > 0
        assert facts["keys of dead locks removed"][0] > 0
        run.wait_until_gone()
        assert run.left_behind() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(number: signal.Signals) -> None:
    with StoryRun() as run:
        # Its site has visitors, and its driver is starting.
        run.wait(lambda: "KILLED web worker" in run.said, "its first kill")
        run.process.send_signal(number)
        assert run.ended(120) == 1, run.said
        assert "stopped before the end: nothing is proved" in run.said
        assert "Traceback" not in run.said
        run.wait_until_gone()
        assert run.left_behind() == []


def test_without_java_it_says_so_and_pretends_nothing(tmp_path: Path) -> None:
    with StoryRun(environment={"PATH": str(tmp_path), "JAVA_HOME": ""}) as run:
        assert run.ended(60) == 1
        assert run.said == (
            "archive: without java there is no Spark job, and no story:"
            " `make setup` installs what is missing, or says how\n"
        )


@pytest.mark.slow
def test_a_spark_that_cannot_start_is_a_clear_error(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this java is broken >&2\nexit 3\n")
    java.chmod(0o755)
    with StoryRun(environment={"JAVA_HOME": str(tmp_path)}) as run:
        assert run.ended(120) == 1, run.said
        assert "archive: the driver ended with status" in run.said
        assert "this java is broken" in run.said
        assert "Traceback" not in run.said
        assert "proved:" not in run.said
        run.wait_until_gone()
        assert run.left_behind() == []
