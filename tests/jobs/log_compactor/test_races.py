"""A compactor among appenders, evicters, readers and other compactors: who comes between wins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.compacted_logs import (
    BLOCK,
    assert_sound,
    assert_whole,
    compact,
    compactor,
    entries,
    entry,
    forms,
    made,
)
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import Aborted
from workstealing.jobs import LogCompactor
from workstealing.jobs.log_compactor import Compactor
from workstealing.recruiting import Slice
from workstealing.store.attempt import Attempt
from workstealing.structures.log import Log

pytestmark = pytest.mark.real


@pytest.fixture
def client(any_server: AnyServer) -> Any:
    return any_server.client()


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do something once, just before a method of the compactor's slice runs."""

    def install(kind: type[Any], method: str, act: Callable[[], Any]) -> None:
        original = getattr(kind, method)
        done = []

        def first(*args: Any, **options: Any) -> Any:
            if not done:
                done.append(1)
                act()
            return original(*args, **options)

        monkeypatch.setattr(kind, method, first)

    return install


def remake(log: Log, count: int = 35) -> None:
    log.delete()
    log.append(*entries(count))


@pytest.mark.parametrize("later", [False, True])
class TestWhoComesBetweenLookAndCommit:
    """After the blocks were read, and before they are replaced."""

    def test_an_evicter(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        if later:
            compact(client)
        between(Attempt, "commit", lambda: log.evict(9))
        with pytest.raises(Aborted):
            compact(client, later=later)
        assert forms(client, log) == ("RRL" if later else "LLL")
        assert log.read(0, 40) == [None] * 10 + entries(35, 10)
        assert_sound(client, log)
        assert compact(client, later=later) == 2
        assert_sound(client, log)

    def test_a_deletion(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        if later:
            compact(client)
        between(Attempt, "commit", log.delete)
        with pytest.raises(Aborted):
            compact(client, later=later)
        assert list(client.scan_iter("*")) == []

    def test_a_new_log_of_this_name(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        if later:
            compact(client)
        between(Attempt, "commit", lambda: remake(log))
        with pytest.raises(Aborted):
            compact(client, later=later)
        assert forms(client, log) == "LLLL"
        assert_sound(client, log)

    def test_another_compactor(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        if later:
            compact(client)
        between(Attempt, "commit", lambda: compact(client, later=later, codec="zlib"))
        with pytest.raises(Aborted):
            compact(client, later=later)
        assert forms(client, log) == ("ZZZL" if later else "RRRL")
        assert_sound(client, log)
        assert_whole(client, 35)

    def test_an_appender_disturbs_nobody(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        between(Attempt, "commit", lambda: log.append(*entries(47, 35)))
        assert compact(client, later=later) == 3
        assert forms(client, log) == ("SSSLL" if later else "RRRLL")
        assert_sound(client, log)
        assert_whole(client, 47)

    def test_an_eviction_inside_a_block_disturbs_nobody(
        self, client: Any, between: Any, later: bool
    ) -> None:
        log = made(client)
        between(Attempt, "commit", lambda: log.evict(4))
        assert compact(client, later=later) == 3
        assert log.read(0, 40) == [None] * 5 + entries(35, 5)
        assert_sound(client, log)

    @pytest.mark.parametrize("what", ["evict", "delete", "remake", "compact"])
    def test_before_the_watch(self, client: Any, between: Any, later: bool, what: str) -> None:
        """Nothing is aborted then: there is nothing left of what the look has seen."""
        log = made(client)
        acts: dict[str, Callable[[], Any]] = {
            "evict": lambda: log.evict(keep=5),
            "delete": log.delete,
            "remake": lambda: remake(log, 8),
            "compact": lambda: compact(client, later=True),
        }
        between(Compactor, "_sizes", acts[what])
        assert compact(client, later=later) == 0
        if what == "delete":
            assert list(client.scan_iter("*")) == []
        else:
            assert_sound(client, log)
            assert "R" not in forms(client, log)

    def test_a_new_log_with_the_same_blocks(self, client: Any, between: Any, later: bool) -> None:
        log = made(client)
        between(Compactor, "_sizes", lambda: remake(log))
        assert compact(client, later=later) == 0
        assert forms(client, log) == "LLLL"
        assert_sound(client, log)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("what", ["evict", "delete", "remake", "compact"])
def test_what_comes_between_two_reads_is_no_damage(
    client: Any, between: Any, later: bool, what: str
) -> None:
    """After the WATCH and the sizes, and before the entries are read."""
    log = made(client)
    if later:
        compact(client)
    acts: dict[str, Callable[[], Any]] = {
        "evict": lambda: log.evict(keep=5),
        "delete": log.delete,
        "remake": lambda: remake(log, 8),
        "compact": lambda: compact(client, later=True),
    }
    between(Compactor, "_fitting", acts[what])
    with pytest.raises(Aborted):
        compact(client, later=later)
    if what == "delete":
        assert list(client.scan_iter("*")) == []
    else:
        assert_sound(client, log)


def test_a_client_that_keeps_blocks_which_are_evicted_since(client: Any) -> None:
    made(client, 60)
    compact(client, later=True)
    reader = Log(client, "l", BLOCK)
    assert reader.read(0, 60) == entries(60)
    for offset in (0, 13, 29, 30, 57, 59):
        Log(client, "l", BLOCK).evict(offset)
        left = offset + 1
        assert reader.read(0, 60) == [None] * left + entries(60, left)
        assert reader.read(25, 20) == [
            entry(each) if each >= left else None for each in range(25, 45)
        ]


SECONDS = 1.0
MOST_SECONDS = 30.0


class Crowd:
    """Threads that work on one log until the time is over, and each has done something.

    Their errors are the test's.
    """

    def __init__(self, server: AnyServer) -> None:
        self.server = server
        self.until = time.monotonic() + SECONDS
        self.errors: list[BaseException] = []
        self.counts: dict[str, int] = {}
        self.threads: list[threading.Thread] = []
        self.stop = 0

    def is_over(self) -> bool:
        late = time.monotonic() - self.until
        return bool(self.errors) or late > (0 if all(self.counts.values()) else MOST_SECONDS)

    def go(self, work: Callable[[], Any], name: str) -> None:
        self.counts[name] = 0

        def run() -> None:
            try:
                while not self.is_over():
                    self.counts[name] += work() or 0
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


def slices(job: LogCompactor) -> Callable[[], int]:
    def work() -> int:
        try:
            return job.perform(Slice(3, 10.0)) or 0
        except Aborted:
            return 0

    return work


@pytest.mark.slow
@pytest.mark.parametrize("evicting", [False, True])
def test_readers_find_every_entry_at_any_moment(any_server: AnyServer, evicting: bool) -> None:
    """One appender, two who read, three who seal or compress, and one who evicts."""
    crowd = Crowd(any_server)
    writer = Log(any_server.client(), "l", BLOCK)

    def append() -> int:
        # Bounded, so that whoever reads to the end can follow.
        stop = crowd.stop + 1 + crowd.stop % 17
        first = writer.append(*entries(stop, crowd.stop))
        assert first == crowd.stop
        crowd.stop = stop
        return 1

    def read(log: Log) -> Callable[[], int]:
        def work() -> int:
            end = crowd.stop
            start = max(0, end - 200)
            info, found = log.read_range(start, end - start)
            assert len(found) == end - start
            for offset, (got, expected) in enumerate(
                zip(found, entries(end, start), strict=True), start
            ):
                # A long read takes several round trips, between which more may be evicted.
                assert got == expected or (got is None and offset < info.first)
            if evicting:
                return 1
            return 1 + (log.read(7, 1) == [entry(7)]) if end > 7 else 0

        return work

    crowd.go(append, "appended")
    crowd.go(read(Log(any_server.client(), "l", BLOCK)), "read")
    crowd.go(read(Log(any_server.client(), "l", BLOCK, cache_blocks=0)), "read uncached")
    for number, (later, codec) in enumerate([(False, "none"), (True, "zlib"), (True, "zstd")]):
        job = compactor(any_server.client(), later=later, codec=codec)
        crowd.go(slices(job), f"compacted by {number}")
    if evicting:
        evicter = Log(any_server.client(), "l", BLOCK)
        crowd.go(lambda: evicter.evict(keep=150), "evicted")
    crowd.run()
    assert all(crowd.counts.values()), crowd.counts
    client = any_server.client()
    log = Log(client, "l", BLOCK)
    assert_sound(client, log)
    while compact(client, later=True):
        pass
    assert_sound(client, log)
    assert set(forms(client, log)[:-1]) <= {"Z", "S"}
    first = log.first()
    assert log.read(first, crowd.stop) == entries(crowd.stop, first)
    assert evicting or first == 0


@pytest.mark.slow
def test_logs_that_are_deleted_and_made_anew(redis7: RedisServer) -> None:
    """Nothing of an old log gets into a new one, and nothing stays behind."""
    crowd = Crowd(redis7)
    owner = Log(redis7.client(), "l", BLOCK)

    def cycle() -> int:
        owner.append(*entries(45))
        for _ in range(3):
            assert owner.read(0, 45) == entries(45)
        return int(owner.delete())

    crowd.go(cycle, "cycles")
    for later in (False, True):
        crowd.go(slices(compactor(redis7.client(), later=later)), f"compacted {later}")
    crowd.run()
    assert all(crowd.counts.values()), crowd.counts
    assert list(redis7.client().scan_iter("*")) == []
