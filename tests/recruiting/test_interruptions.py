"""A host's time-out raised between any two steps of an enlist leaves nothing stuck behind."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Iterator

import pytest

from support.interruptions import Interruption, alarms, interrupt, place_of, points_of
from workstealing import Outcome, Recruiter, Slice
from workstealing.recruiting import Adaptive, Hooks
from workstealing.recruiting.slice_slot import SLICE_SLOT, Run
from workstealing.testing import always


class Counting(Hooks):
    """Counts its calls."""

    def __init__(self) -> None:
        self.enlisted = self.recruited = self.outcomes = 0

    def on_enlisted(self, count: int) -> None:
        self.enlisted += count

    def on_recruited(self, job: str) -> None:
        self.recruited += 1

    def on_outcome(self, *_: object) -> None:
        self.outcomes += 1


def tended(counting: Counting, rate: float | Adaptive = 0.5) -> Recruiter:
    """Return a recruiter that recruits always, passes the time-out on, and tells a hook."""
    recruiter = Recruiter(random=lambda: 0.0)
    recruiter.reraise(Interruption)
    recruiter.add_hook(counting)

    @recruiter.job(rate=rate)
    def sweep(slice: Slice) -> int:
        slice.observe(oldest_seconds=1.0, backlog=2)
        return 1

    return recruiter


@pytest.fixture(autouse=True)
def free_place() -> Iterator[None]:
    yield
    held = SLICE_SLOT.holder()
    SLICE_SLOT.reset()
    assert held is None


def served_elsewhere(recruiter: Recruiter) -> bool:
    """Say whether another thread, which holds none of this one's locks, is served."""
    outcomes: list[Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(recruiter.enlist()), daemon=True)
    thread.start()
    thread.join(120)
    return outcomes == [Outcome.WORKED]


class TestEveryOpcode:
    @pytest.mark.parametrize("rate", [0.5, Adaptive(0.1, 0.5)])
    def test_of_an_enlist_and_its_slice(self, rate: float | Adaptive) -> None:
        points = points_of(tended(Counting(), rate).enlist)
        assert len(points) > 500
        counting = Counting()
        recruiter = tended(counting, rate)
        kept: list[BaseException] = []
        for point in points:
            recruited, outcomes = counting.recruited, counting.outcomes
            raised = interrupt(recruiter.enlist, point)
            if raised is not None:
                assert isinstance(raised, Interruption), place_of(point)
                # As a host does that reports it: its traceback holds every frame.
                kept.append(raised)
            # A recruit is counted at most once, and lost only where the time-out hit the counting.
            assert counting.recruited - recruited <= 1, place_of(point)
            assert counting.outcomes - outcomes <= 1, place_of(point)
            assert SLICE_SLOT.holder() is None, place_of(point)
            recruited, outcomes = counting.recruited, counting.outcomes
            assert recruiter.enlist() is Outcome.WORKED, place_of(point)
            assert counting.recruited == recruited + 1, place_of(point)
            assert counting.outcomes == outcomes + 1, place_of(point)
        assert len(kept) > 400
        assert served_elsewhere(recruiter)

    @pytest.mark.slow
    def test_every_lock_is_free(self) -> None:
        points = points_of(tended(Counting()).enlist)
        for point in points[::7]:
            recruiter = tended(Counting())
            interrupt(recruiter.enlist, point)
            assert served_elsewhere(recruiter), place_of(point)
            recruiter.flush()

    @pytest.mark.slow
    def test_the_figures_stay_right(self) -> None:
        points = points_of(tended(Counting()).enlist)
        counting = Counting()
        recruiter = tended(counting)
        for point in points:
            interrupt(recruiter.enlist, point)
            recruiter.enlist()
        recruiter.flush()
        enlisted = recruiter.stats()["enlisted"]
        # Each of the interrupted is counted once or not at all; nobody else is.
        assert len(points) <= enlisted <= 2 * len(points)
        assert counting.enlisted <= enlisted
        job = recruiter.stats()["jobs"]["sweep"]
        assert job["recruited"] >= len(points)
        assert counting.recruited >= counting.outcomes >= len(points)


class TestSignals:
    @pytest.mark.slow
    def test_thousands_at_random_moments(self) -> None:
        counting = Counting()
        recruiter = tended(counting)
        chance = random.Random(4)
        landed = 0
        with alarms() as alarm:
            while landed < 2_000:
                try:
                    alarm(chance.uniform(5e-6, 3e-4))
                    for _ in range(1_000):
                        recruiter.enlist()
                    alarm(0)
                except Interruption:
                    landed += 1
        assert recruiter.enlist() is Outcome.WORKED
        job = recruiter.stats()["jobs"]["sweep"]
        assert job["skipped"] == 0
        before = counting.outcomes
        recruiter.enlist()
        assert counting.outcomes == before + 1
        assert served_elsewhere(recruiter)

    @pytest.mark.slow
    def test_slices_of_two_milliseconds(self) -> None:
        recruiter = Recruiter(seconds=0.002, random=lambda: 0.0)
        recruiter.reraise(Interruption)

        @recruiter.job(rate=0.5)
        def spin(slice: Slice) -> int:
            while not slice.expired:
                pass
            return 1

        chance = random.Random(5)
        landed = 0
        with alarms() as alarm:
            while landed < 1_000:
                try:
                    alarm(chance.uniform(1e-5, 4e-3))
                    for _ in range(100):
                        recruiter.enlist()
                    alarm(0)
                except Interruption:
                    landed += 1
        assert recruiter.enlist() is Outcome.WORKED
        assert recruiter.stats()["jobs"]["spin"]["skipped"] == 0

    @pytest.mark.slow
    def test_a_handler_may_enlist_at_any_moment(self) -> None:
        recruiter = tended(Counting())
        outcomes: list[Outcome] = []

        def enlist() -> BaseException:
            outcomes.append(recruiter.enlist())
            return Interruption()

        for point in points_of(tended(Counting()).enlist):
            interrupt(recruiter.enlist, point, enlist)
        assert set(outcomes) <= {Outcome.WORKED, Outcome.SKIPPED, Outcome.DISMISSED}
        assert recruiter.enlist() is Outcome.WORKED


@pytest.mark.slow
class TestOtherThreads:
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_asynchronous_exceptions_into_a_thread_that_enlists(self) -> None:
        counting = Counting()
        recruiter = tended(counting)
        landed = [0]

        def work() -> None:
            while landed[0] < 1_000:
                try:
                    while True:
                        recruiter.enlist()
                except Interruption:
                    landed[0] += 1

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert thread.ident is not None
        raise_into = ctypes.pythonapi.PyThreadState_SetAsyncExc
        sent = 0
        while landed[0] < 1_000 and thread.is_alive():
            before = landed[0]
            raise_into(ctypes.c_ulong(thread.ident), ctypes.py_object(Interruption))
            sent += 1
            # Python drops one that strikes in a finalizer or a weak reference's callback.
            again_at = time.monotonic() + 5.0
            while landed[0] == before and thread.is_alive() and time.monotonic() < again_at:
                time.sleep(0)
        assert sent <= 1_010, "so many interruptions were swallowed"
        # One that is still on its way may end the thread where nobody catches it.
        thread.join(120)
        assert not thread.is_alive()
        assert SLICE_SLOT.holder() is None
        assert recruiter.enlist() is Outcome.WORKED
        assert recruiter.stats()["jobs"]["sweep"]["skipped"] == 0
        assert served_elsewhere(recruiter)


class TestHolder:
    def test_nobody_then_the_job_then_nobody(self) -> None:
        recruiter = always()
        seen: list[tuple[str, float] | None] = []

        @recruiter.job(rate=0.5)
        def look(slice: Slice) -> int:
            seen.append(SLICE_SLOT.holder())
            return 1

        before = time.monotonic()
        assert SLICE_SLOT.holder() is None
        recruiter.enlist()
        assert SLICE_SLOT.holder() is None
        ((job, since),) = [each for each in seen if each is not None]
        assert job == "look"
        assert before <= since <= time.monotonic()

    def test_a_slice_that_does_not_return_is_seen_and_excludes_others(self) -> None:
        recruiter = always()
        inside, go = threading.Event(), threading.Event()

        @recruiter.job(rate=0.5)
        def hang(slice: Slice) -> int:
            inside.set()
            assert go.wait(120)
            return 1

        thread = threading.Thread(target=recruiter.enlist)
        thread.start()
        assert inside.wait(120)
        held = SLICE_SLOT.holder()
        assert held is not None
        assert held[0] == "hang"
        assert {recruiter.enlist() for _ in range(20)} == {Outcome.SKIPPED}
        assert SLICE_SLOT.holder() == held
        go.set()
        thread.join()
        assert SLICE_SLOT.holder() is None

    def test_a_run_whose_frames_are_kept_is_over(self) -> None:
        def fail() -> None:
            raise KeyError

        run = Run(fail)
        assert not run.is_running
        assert not run.is_over
        with pytest.raises(KeyError) as kept:
            run()
        assert kept.tb is not None
        assert not run.is_running
        assert run.is_over
