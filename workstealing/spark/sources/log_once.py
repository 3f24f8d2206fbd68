"""How tasks append to logs: at least once, or each row exactly once.

For exactly once, each log keeps for each partition of a query: the batch, how many of its rows are
in the log, and a digest of these. The script that appends the rows writes this note. A task that is
tried again counts its rows, leaves out the rows that are there, checks by the digest that they were
the same, and goes on behind them. Two tasks that run at the same time do so too.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

from workstealing.errors import ReplayDiffersError
from workstealing.spark.sources.log_options import FORMAT
from workstealing.store.operations import drive
from workstealing.structures import Log
from workstealing.structures.log.appending import MOST_BLOCKS, Marker, WrittenRows

# As many as fit even where each block has one entry.
ENTRIES_A_CALL = MOST_BLOCKS - 1
BYTES_A_CALL = 1024 * 1024
# Of all logs together, when rows go to many of them.
BYTES_KEPT = 8 * 1024 * 1024
DEFAULT_BLOCK = 1000


class Origin(NamedTuple):
    """Whose rows they are: a query, a batch of it, and a partition of that."""

    query: str
    batch: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of the query {self.query!r}"


class Appender:
    """Appends the rows of one task to logs.

    Arguments:
        block: entries a block of a new log, None for the usual number.
        turn: for exactly once, None for at least once.
    """

    def __init__(self, client: Any, block: int | None, turn: Origin | None) -> None:
        self._client = client
        self._block = block or DEFAULT_BLOCK
        self._turn = turn
        self._parts: dict[str, _LogRows] = {}
        self._kept = 0

    def add(self, log: str, value: bytes) -> None:
        """Take a row, and append those of its log if they are enough for a call."""
        part = self._parts.get(log)
        if part is None:
            made: Any = Log(self._client, log, self._block)
            part = self._parts[log] = (_LogRows if self._turn is None else _OncePart)(
                self._client, made, self._turn
            )
        part.rows.append(value)
        part.size += len(value)
        self._kept += len(value)
        if len(part.rows) >= ENTRIES_A_CALL or part.size >= BYTES_A_CALL:
            self._flush([part])
        elif self._kept >= BYTES_KEPT:
            self._flush(self._parts.values())

    def finish(self) -> tuple[int, int]:
        """Append what is left. Returns: how many rows were appended, and how many were there."""
        self._flush(self._parts.values())
        for part in self._parts.values():
            part.finish()
        parts = self._parts.values()
        return sum(part.appended for part in parts), sum(part.passed for part in parts)

    def _flush(self, parts: Iterable[_LogRows]) -> None:
        for part in parts:
            if part.rows:
                self._kept -= part.size
                rows, part.rows, part.size = part.rows, [], 0
                part.append(rows)


class _LogRows:
    """The rows of a task that go to one log, at least once."""

    def __init__(self, client: Any, log: Any, turn: Origin | None) -> None:
        self.client, self.log, self.turn = client, log, turn
        self.rows: list[bytes] = []
        self.size = self.appended = self.passed = 0

    def append(self, rows: list[bytes]) -> None:
        """Append rows; one round trip."""
        drive(self.client, self.log.append_steps(rows, None))
        self.appended += len(rows)

    def finish(self) -> None:
        """Check what can be checked at the end."""


class _OncePart(_LogRows):
    """The rows of a task that go to one log, exactly once."""

    def __init__(self, client: Any, log: Any, turn: Origin | None) -> None:
        super().__init__(client, log, turn)
        self._digest = blake2b(digest_size=8)
        self._there = WrittenRows(0, 0, "")

    @property
    def _position(self) -> int:
        return self.appended + self.passed

    def append(self, rows: list[bytes]) -> None:
        """Append the rows that the log lacks; one round trip, two if the log has some of them."""
        while rows:
            if self._position < self._there.rows:
                rows = self._pass(rows)
                continue
            digest = _with(self._digest.copy(), rows)
            assert self.turn is not None
            query, batch, partition = self.turn
            marker = Marker(query, partition, batch, self._position, digest.hexdigest())
            reply = drive(self.client, self.log.append_steps(rows, None, marker))
            if isinstance(reply, WrittenRows):
                self._heed(reply)
                continue
            self._digest = digest
            self.appended += len(rows)
            return

    def finish(self) -> None:
        """Raise an error if the log has rows that did not come again."""
        if self._position < self._there.rows:
            raise self._differs(f"{self._there.rows:,} rows, now it has {self._position:,}")

    def _pass(self, rows: list[bytes]) -> list[bytes]:
        """Leave out the rows that are in the log already. Returns: the other rows."""
        count = min(len(rows), self._there.rows - self._position)
        _with(self._digest, rows[:count])
        self.passed += count
        if self._position == self._there.rows and self._digest.hexdigest() != self._there.digest:
            raise self._differs(
                f"{self._there.rows:,} rows, and now it has others, or in another order"
            )
        return rows[count:]

    def _heed(self, there: WrittenRows) -> None:
        """Go on behind the rows in the log. Raises: ReplayDiffersError if that cannot be."""
        assert self.turn is not None
        name = self.log.name
        if there.batch > self.turn.batch:
            raise ReplayDiffersError(
                f"format {FORMAT!r}: {self.turn} is not written to the log {name!r}: batch"
                f" {there.batch} has been, so this is a task that comes too late, or a query that"
                " began anew under an old name: give that one another name"
            )
        if there.batch < self.turn.batch or there.rows <= self._position:
            raise ReplayDiffersError(
                f"format {FORMAT!r}: the log {name!r} does not know any more of {self._position:,}"
                f" rows of {self.turn}, which were written into it: it was deleted meanwhile, or"
                " its server has lost them; the batch is to be written again"
            )
        self._there = there

    def _differs(self, what: str) -> ReplayDiffersError:
        return ReplayDiffersError(
            f"format {FORMAT!r}: {self.turn} had written to the log {self.log.name!r} {what}."
            " Exactly once needs the same rows in the same order in the same partition whenever a"
            " batch is run again (see docs/spark_log.md); to go on, write this batch without it"
        )


def _with(digest: Any, rows: Iterable[bytes]) -> Any:
    for row in rows:
        # With its length: what is cut in another way is something else.
        digest.update(len(row).to_bytes(8))
        digest.update(row)
    return digest
