"""The blocks of docs/cassandra.md run in order on a real Cassandra."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from support.cassandra import CassandraServer
from support.pages import running

pytestmark = pytest.mark.cassandra


def test_the_blocks(cassandra: CassandraServer, capsys: pytest.CaptureFixture[str]) -> None:
    cassandra.session.execute(
        "CREATE KEYSPACE shop WITH replication ="
        " {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    sent: list[bytes] = []
    page = running("docs/cassandra.md", replace={"9042": str(cassandra.node.cql)})
    try:
        with page:
            names = page.run(send=sent.append)
            assert sent == [b"remind 17"]
            assert list(names["recruiter"].stats()["jobs"]) == ["time_shard_sweeper.reminders"]
            for number in range(3):
                names["reminders"].put(str(number))
            page.run(spark=OneProcess())
        assert len(names["rows"]) == 3
        assert {(state, takes) for _, _, state, takes in names["rows"]} == {(None, None)}
    finally:
        page.names["session"].cluster.shutdown()


class OneProcess:
    """A session's calls that the page makes, without Spark: each partition in this process."""

    def __init__(self) -> None:
        self.sparkContext = self

    def parallelize(self, data: Iterable[Any], partitions: int) -> OneProcess:
        self.data = list(data)
        assert len(self.data) == partitions
        return self

    def flatMap(self, work: Callable[[Any], Iterable[Any]]) -> list[Any]:  # noqa: N802
        return [row for each in self.data for row in work(each)]

    def createDataFrame(self, rows: list[Any], schema: str) -> OneProcess:  # noqa: N802
        assert {len(row) for row in rows} == {len(schema.split(","))}
        return self

    def show(self) -> None: ...
