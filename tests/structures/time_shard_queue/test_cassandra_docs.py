"""The blocks of docs/cassandra.md run in order on a real Cassandra, the last one on Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.cassandra import CassandraServer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cassandra.md"

pytestmark = pytest.mark.cassandra


def test_the_blocks(cassandra: CassandraServer, capsys: pytest.CaptureFixture[str]) -> None:
    cassandra.session.execute(
        "CREATE KEYSPACE shop WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    text = PAGE.read_text("utf-8").replace("9042", str(cassandra.node.cql))
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    sent: list[bytes] = []
    names: dict[str, Any] = {"send": sent.append}
    try:
        exec(compile(first, "docs", "exec"), names)
        assert sent == [b"remind 17"]
        assert list(names["recruiter"].stats()["jobs"]) == ["time_shard_sweeper.reminders"]
        for number in range(3):
            names["reminders"].put(str(number))
        # The tasks of Spark unpickle what a module has.
        found = {}
        exec(compile(second.partition("\n\nrows =")[0], "docs", "exec"), {**names}, found)
        found["rows_of"].__globals__.update(names)
        rows = [row for number in range(6) for row in found["rows_of"](number)]
        assert len(rows) == 3
        assert {(state, takes) for _, _, state, takes in rows} == {(None, None)}
    finally:
        names["session"].cluster.shutdown()
