"""A compactor learns what compressing costs here, and begins only what fits into its slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.compacted_logs import LATER_MS, compactor, entries, forms, made
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.errors import OutOfTime
from workstealing.jobs import LogCompactor, log_compactor
from workstealing.jobs.log_compactor import PackingPace
from workstealing.recruiting import Outcome, Slice
from workstealing.store.attempt import Attempt
from workstealing.structures import Log
from workstealing.structures.log.blocks import compress
from workstealing.testing import ManualClock, always

pytestmark = pytest.mark.real

BLOCK = 10
ENTRY = 100_000
"""Of ten of them: a block of about a megabyte, sixteen pieces."""


SCALE = 20
"""How much slower than said all this is: its clock waits for it, the server's replies do not."""


class Machine:
    """A machine that compresses so many bytes a second, by a clock that only it moves."""

    def __init__(self, bytes_a_second: float) -> None:
        self.bytes_a_second = bytes_a_second
        self.clock = ManualClock()
        self.blocks = 0

    def compress(self, *settings: Any, between: Callable[[int], None]) -> bytes:
        self.blocks += 1
        last = 0

        def slowly(done: int) -> None:
            nonlocal last
            self.advance((done - last) / self.bytes_a_second)
            last = done
            between(done)

        return compress(*settings, between=slowly)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds * SCALE)

    def slice(self, seconds: float) -> Slice:
        return Slice(10, seconds * SCALE, self.clock)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(25e6)
    monkeypatch.setattr(log_compactor, "compress", found.compress)
    monkeypatch.setitem(log_compactor._BYTES_A_SECOND, "zlib", ((9, 25e6 / SCALE),))
    return found


def cold_log(client: Any, blocks: int = 20, **options: Any) -> LogCompactor:
    log = Log(client, "l", BLOCK)
    for _ in range(blocks):
        log.append(*[b"x" * ENTRY] * BLOCK)
    later = Log(client, "l", BLOCK, clock_shift_ms=LATER_MS)
    return LogCompactor(later, cold=1000.0, codec="zlib", **options)


def outcomes(job: LogCompactor, machine: Machine, seconds: float, slices: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(slices):
        try:
            found.append(job.perform(machine.slice(seconds)))
        except OutOfTime as error:
            found.append(error)
    return found


def test_it_begins_only_what_fits(redis7: RedisServer, machine: Machine) -> None:
    job = cold_log(redis7.client())
    # 25 MB/s: two blocks of 1.3 MB of memory fit into 120 ms, and two are done.
    assert outcomes(job, machine, 0.12, 1) == [2]
    assert machine.blocks == 2


def test_a_slower_machine_is_learned_in_one_slice(redis7: RedisServer, machine: Machine) -> None:
    machine.bytes_a_second = 5e6
    job = cold_log(redis7.client())
    # The first was begun in good faith: one was finished, and the second was broken off.
    assert outcomes(job, machine, 0.3, 4) == [1, 1, 1, 1]
    # Since then none was begun in vain.
    assert machine.blocks == 5


def test_whoever_lends_the_moment_does_not_wait(redis7: RedisServer, machine: Machine) -> None:
    machine.bytes_a_second = 1e6
    job = cold_log(redis7.client())
    slice = machine.slice(0.05)
    with pytest.raises(OutOfTime, match="bytes of a block of the log 'l' were compressed"):
        job.perform(slice)
    # Over by one piece of 64 KiB at most.
    assert -slice.remaining() <= 65_536 / machine.bytes_a_second * SCALE


def test_nothing_fits_into_what_is_left(redis7: RedisServer, machine: Machine) -> None:
    client = redis7.client()
    job = cold_log(client)
    late = machine.slice(0.05)
    machine.advance(0.02)
    with pytest.raises(OutOfTime, match=r"600\.0 ms are left of a slice of 1000 ms, and a block"):
        job.perform(late)
    assert machine.blocks == 0
    assert forms(client, job.logs[0]) == "L" * 20
    assert job.too_large == 0


def test_a_busy_hour_passes(redis7: RedisServer, machine: Machine) -> None:
    """What was learned while the machine was busy does not stop the job for ever."""
    job = cold_log(redis7.client())
    machine.bytes_a_second = 2e6
    outcomes(job, machine, 0.06, 3)
    machine.bytes_a_second = 25e6
    assert sum(each for each in outcomes(job, machine, 0.06, 30) if isinstance(each, int)) >= 10


def test_one_slow_reply_stops_it_for_a_few_slices_only(
    redis7: RedisServer, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replies as slow as that one leave no room in a slice, so none is measured again."""
    commit, slow = Attempt.commit, [0.2]

    def slowly(self: Attempt, *commands: Any) -> Any:
        machine.advance(slow.pop() if slow else 0.0)
        return commit(self, *commands)

    monkeypatch.setattr(Attempt, "commit", slowly)
    job = cold_log(redis7.client())
    found = outcomes(job, machine, 0.25, 15)
    assert isinstance(found[1], OutOfTime)
    assert sum(each for each in found if isinstance(each, int)) >= 10


def test_a_machine_that_is_slow_for_good_says_so_and_goes_on(
    redis7: RedisServer, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    client = redis7.client()
    job = cold_log(client, blocks=1)
    Log(client, "l").append(*[b"y" * 1000] * 20)
    machine.bytes_a_second = 2e6
    outcomes(job, machine, 0.06, 400)
    # The large block is left as it is, once said; the small ones are done.
    assert job.too_large == 1
    assert forms(client, job.logs[0]) == "LZZ"
    assert sum("is left as it is" in each.getMessage() for each in caplog.records) == 1


def test_out_of_time_is_called_so(redis7: RedisServer, machine: Machine) -> None:
    machine.bytes_a_second = 1e6
    recruiter = always(seconds=0.05 * SCALE, clock=machine.clock)
    recruiter.install(cold_log(redis7.client()), rate=1.0)
    assert recruiter.enlist() is Outcome.OUT_OF_TIME


def test_a_dry_run_counts_what_fits_and_ends_well(redis7: RedisServer, machine: Machine) -> None:
    job = cold_log(redis7.client(), dry_run=True)
    late = machine.slice(0.05)
    machine.advance(0.02)
    assert job.perform(late) == 0
    assert outcomes(job, machine, 10.0, 1) == [3]


def test_pace_learns_and_hopes() -> None:
    pace = PackingPace(10e6)
    pace.note(1_000_000, 1.0)
    assert pace.bytes_a_second == 1e6
    pace.note(4_000_000, 1.0)
    assert pace.bytes_a_second == 2.5e6
    for _ in range(3):
        pace.hope()
    assert pace.bytes_a_second == pytest.approx(2.5e6 * 1.25**3)
    for _ in range(50):
        pace.hope()
    assert pace.bytes_a_second == pace.best < 10e6
    pace.note(0, 1.0)
    pace.note(1, 0.0)
    assert pace.bytes_a_second == pace.best


def test_what_seals_only_needs_no_pace_of_a_codec(redis7: RedisServer) -> None:
    client = redis7.client()
    log = made(client)
    assert compactor(client, codec="none").perform(Slice(100, 10.0)) == 3
    assert Log(client, "l").read(0, 50) == entries(35)
    assert forms(client, log) == "RRRL"
