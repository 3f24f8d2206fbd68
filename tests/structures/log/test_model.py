"""A log beside a plain list of its entries: every call, in any order, on blocks of every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer
from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import Log

BLOCK = 4
STEPS = 40
# Bytes that a text, a number, a script or a table of ends could be taken for, too.
ENTRIES = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\x00\x00\x00\x01", b"WSL\x01r\x00\x00\x00", b"nil", b"-1", b"x" * 300]),
)
OFFSETS = st.integers(-40, 70)
COUNTS = st.integers(0, 40)


class LogMachine(RuleBasedStateMachine):
    """Does everything to a log and to a list, by clients that know different things of the log.

    Attributes of a subclass: make: returns a log, whose client's cache keeps so many blocks.
    """

    make: ClassVar[Callable[[int], Any]]
    wipe: ClassVar[Callable[[], None]]

    @initialize()
    def begin(self) -> None:
        self.wipe()
        self.logs = [self.make(16), self.make(2), self.make(0)]
        self.entries: list[bytes] = []
        self.first = 0
        self.turn = 0

    @property
    def log(self) -> Any:
        """One of the clients: the others do not know what it does."""
        self.turn += 1
        return self.logs[self.turn % 3]

    def expected(self, start: int, stop: int) -> list[bytes | None]:
        stop = min(stop, len(self.entries))
        return [None if at < self.first else self.entries[at] for at in range(start, stop)]

    def at(self, offset: int) -> int:
        return offset if offset >= 0 else max(0, len(self.entries) + offset)

    @rule(batch=st.lists(ENTRIES, min_size=1, max_size=11))
    def append(self, batch: list[bytes]) -> None:
        assert self.log.append(*batch) == len(self.entries)
        self.entries += batch

    @rule(batch=st.lists(ENTRIES, min_size=1, max_size=11), keep=st.integers(0, 30))
    def append_and_keep(self, batch: list[bytes], keep: int) -> None:
        assert self.log.append(*batch, keep=keep) == len(self.entries)
        self.entries += batch
        whole_blocks = max(0, len(self.entries) - keep) // BLOCK * BLOCK
        self.first = max(self.first, whole_blocks)

    @rule(offset=OFFSETS, count=COUNTS)
    def read(self, offset: int, count: int) -> None:
        start = self.at(offset)
        assert self.log.read(offset, count) == self.expected(start, start + count)

    @rule(offset=OFFSETS, count=COUNTS)
    def read_range(self, offset: int, count: int) -> None:
        start = self.at(offset)
        info, entries = self.log.read_range(offset, count)
        assert entries == self.expected(start, start + count)
        assert info == (self.first, len(self.entries) - 1, start, len(entries))

    @rule(offset=st.integers(0, 70))
    def evict(self, offset: int) -> None:
        first = max(self.first, min(offset + 1, len(self.entries)))
        assert self.log.evict(offset) == first - self.first
        self.first = first

    @rule(keep=st.integers(0, 50))
    def evict_but_keep(self, keep: int) -> None:
        first = max(self.first, len(self.entries) - keep)
        assert self.log.evict(keep=keep) == first - self.first
        self.first = first

    @rule(codec=st.sampled_from(["none", "zlib", "auto"]), limit=st.integers(1, 4))
    def compact(self, codec: str, limit: int) -> None:
        job = LogCompactor(self.log, limit=limit, cold=0, codec=codec)
        assert 0 <= job.perform(Slice(limit, 5.0)) <= limit

    @rule(most=st.integers(0, 60))
    def trim(self, most: int) -> None:
        LogTrimmer(self.log, max_entries=most).perform(Slice(50, 5.0))
        # Whole blocks, or to the entry: what is promised is that this many are left.
        first = self.log.first()
        assert self.first <= first <= max(self.first, len(self.entries) - most)
        self.first = first
        assert self.log.stats().blocks == self.blocks()

    def blocks(self) -> int:
        """How many blocks hold what is available."""
        return -(-len(self.entries) // BLOCK) - self.first // BLOCK

    @rule(start=OFFSETS, length=COUNTS, prefetch=st.integers(0, 2))
    def iterate(self, start: int, length: int, prefetch: int) -> None:
        begin = self.at(start)
        found = list(self.log.iterate(start, begin + length, prefetch=prefetch))
        assert found == self.expected(begin, begin + length)

    @rule()
    def iterate_all_both_ways(self) -> None:
        expected = self.expected(0, len(self.entries))
        assert list(self.log) == expected
        assert list(reversed(self.log)) == expected[::-1]

    @precondition(lambda self: self.entries)
    @rule()
    def delete(self) -> None:
        """And begin again: clients know nothing of it."""
        self.log.delete()
        self.entries, self.first = [], 0

    @rule()
    def facts(self) -> None:
        facts = self.log.stats()
        assert facts.entries == len(self.entries) - self.first
        # An append may leave blocks that it has evicted to the next one, or to the trimmer.
        assert facts.blocks >= self.blocks()
        assert facts.open + facts.sealed == facts.blocks
        assert facts.compressed <= facts.sealed

    @invariant()
    def ends(self) -> None:
        if hasattr(self, "logs"):
            log = self.log
            assert log.length() == len(self.entries) - self.first
            assert log.first() == self.first
            assert log.last() == len(self.entries) - 1


def run(server: AnyServer, examples: int) -> None:
    client = server.client()

    def make(cache_blocks: int) -> Any:
        return Log(client, "modelled", BLOCK, cache_blocks=cache_blocks)

    machine = type(
        "Machine",
        (LogMachine,),
        {"make": staticmethod(make), "wipe": staticmethod(client.flushdb)},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            phases=[Phase.reuse, Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
        ),
    )


def test_a_log_is_a_list_of_its_entries(redis7: AnyServer) -> None:
    run(redis7, max(10, settings.default.max_examples // 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fakeredis_server", "valkey8"])
def test_it_is_one_on_other_servers(kind: str, request: pytest.FixtureRequest) -> None:
    run(request.getfixturevalue(kind), max(5, settings.default.max_examples // 10))
