"""TrackQueued and UntrackDone on every kind of server: what a slice does, what aborts it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from support.table_source import TableSource
from workstealing.dashboard.queries import structure_figures
from workstealing.dashboard.watched import watch
from workstealing.errors import Aborted, ConfigurationError, LayoutError, OutOfTime, Skipped
from workstealing.jobs import TrackQueued, UntrackDone
from workstealing.recruiting import Outcome, Slice
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.recruiting.job import Backlog
from workstealing.store.attempt import Attempt
from workstealing.structures import AsyncTrackedSet, TrackedSet
from workstealing.testing import RecordingHooks, always

pytestmark = pytest.mark.contract


def slice_of(limit: int) -> Slice:
    return Slice(limit, 5.0)


def ids(tracked: TrackedSet, names: list[str]) -> set[str]:
    return {name for name, here in zip(names, tracked.are_tracked(names), strict=True) if here}


def test_the_walk_tracks_what_has_work_and_starts_again(any_server: AnyServer) -> None:
    work = [f"{i:03}" for i in range(120)]
    source = TableSource(work)
    client = any_server.client()
    tracked = TrackedSet(client, "queued", source)
    job = TrackQueued(tracked)
    assert [job.perform(slice_of(50)) for _ in range(3)] == [50, 50, 20]
    assert tracked.count() == 120
    assert client.get(tracked.names.cursor) is None
    # What was lost comes back in the next round, and the rest costs no second question.
    tracked.untrack(["005", "077"])
    source.questions.clear()
    assert [job.perform(slice_of(50)) for _ in range(3)] == [1, 1, 0]
    assert source.questions == ["rows_after", "with_work"] * 2 + ["rows_after"]
    assert ids(tracked, work) == set(work)


def test_the_walk_goes_on_where_the_last_recruit_stopped(any_server: AnyServer) -> None:
    client = any_server.client()
    source = TableSource(f"{i:03}" for i in range(30))
    for _ in range(3):
        tracked = TrackedSet(client, "queued", source)
        assert TrackQueued(tracked, limit=10).perform(slice_of(10)) == 10
    assert client.get(tracked.names.cursor) == b"029"
    assert TrackQueued(tracked).perform(slice_of(10)) == 0
    assert client.get(tracked.names.cursor) is None


def test_the_end_of_a_full_last_page_and_an_empty_table(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(), "queued", TableSource())
    assert TrackQueued(tracked).perform(slice_of(50)) == 0
    assert UntrackDone(tracked).perform(slice_of(5)) == 0


def test_done_ids_are_untracked_and_others_stay(any_server: AnyServer) -> None:
    source = TableSource(f"work{i}" for i in range(20))
    tracked = TrackedSet(any_server.client(), "queued", source, sub_sets=8)
    tracked.track(source.work)
    tracked.track(f"done{i}" for i in range(20))
    job = UntrackDone(tracked)
    # Chance may pass an id over for long; 2,000 slices of 5 of 40 ids do not.
    removed = 0
    for _ in range(2000):
        removed += job.perform(slice_of(5))
        if removed == 20:
            break
    assert (removed, tracked.count()) == (20, 20)
    assert ids(tracked, sorted(source.work)) == source.work


class Figures(RecordingHooks):
    """Hears of the figures of a job's own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[str] = []

    def on_measured(self, job: str, what: str, value: float) -> None:
        self.measured.append(what)


def test_the_job_pauses_itself_where_the_source_knows_none_of_500_ids(
    any_server: AnyServer, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = TableSource(["another"])
    tracked = TrackedSet(any_server.client(), "queued", wrong, sub_sets=1)
    tracked.track(range(1_000))
    assert tracked.inspect(tracked.halt_steps()) is None
    recruiter, figures = always(), Figures()
    recruiter.add_hook(figures)
    job = UntrackDone(tracked, limit=50)
    recruiter.install(job, rate=1.0, seconds=5.0)
    heard, _ = ANNOUNCEMENTS.since(0)
    with caplog.at_level("WARNING", "workstealing.jobs"):
        outcomes = [recruiter.enlist() for _ in range(12)]
    assert outcomes == [Outcome.WORKED] * 10 + [Outcome.SKIPPED] * 2
    assert tracked.count() == 500
    assert figures.measured == ["halted"]
    _, (told,) = ANNOUNCEMENTS.since(heard)
    assert told[:3] == ("braked", job.name, "its source knew work of none of the last ids")
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.startswith("UntrackDone of the tracked set 'queued' has paused itself, because")
    assert said.endswith("then call resume() of the TrackedSet")
    # So has every other process, in its next slice, and whoever asks is told.
    other = UntrackDone(TrackedSet(any_server.client(), "queued", wrong, sub_sets=1), limit=50)
    with pytest.raises(Skipped, match="has paused itself"):
        other.perform(slice_of(1))
    assert tracked.count() == 500
    assert tracked.inspect(tracked.halt_steps()) == said
    snapshot = structure_figures(watch(job))
    assert snapshot.trouble == said
    # A dry run removes nothing, and helps to see why.
    left = tracked.count()
    assert UntrackDone(tracked, dry_run=True).perform(slice_of(5)) == 5
    # Until a person says that the table is right.
    assert tracked.resume()
    assert not tracked.resume()
    assert structure_figures(watch(job)).trouble is None
    assert recruiter.enlist() is Outcome.WORKED
    assert other.perform(slice_of(5)) == 5
    assert tracked.count() == left - 55


def test_one_known_id_among_500_keeps_the_job_at_work(redis7: RedisServer) -> None:
    work = [str(each) for each in range(30)]
    tracked = TrackedSet(redis7.client(), "queued", TableSource(work), sub_sets=1)
    tracked.track(range(1_200))
    job = UntrackDone(tracked, limit=100)
    for _ in range(200):
        job.perform(slice_of(100))
    assert tracked.count() == 30


def test_an_id_that_is_tracked_again_meanwhile_is_not_removed(any_server: AnyServer) -> None:
    source = TableSource()
    tracked = TrackedSet(any_server.client(), "queued", source, sub_sets=1)
    tracked.track("a")

    def new_work(_: str) -> None:
        source.after = lambda _: None
        source.work.add("a")
        # Present already: SADD alone would break no WATCH.
        assert tracked.track("a") == 0

    source.after = new_work
    with pytest.raises(Aborted):
        UntrackDone(tracked).perform(slice_of(5))
    assert tracked.is_tracked("a")
    assert UntrackDone(tracked).perform(slice_of(5)) == 0


def test_an_id_that_is_done_meanwhile_is_not_added(any_server: AnyServer) -> None:
    source = TableSource(["a"])
    tracked = TrackedSet(any_server.client(), "queued", source, sub_sets=1)

    def finish(question: str) -> None:
        if question == "with_work":
            source.after = lambda _: None
            source.work.clear()
            # Absent already: SREM alone would change nothing.
            assert tracked.untrack("a") == 0

    source.after = finish
    with pytest.raises(Aborted):
        TrackQueued(tracked).perform(slice_of(50))
    assert tracked.count() == 0


def test_an_id_that_was_done_between_the_questions_is_not_added(any_server: AnyServer) -> None:
    source = TableSource(["a", "b"])
    tracked = TrackedSet(any_server.client(), "queued", source)
    source.after = lambda question: source.work.discard("a")
    assert TrackQueued(tracked).perform(slice_of(50)) == 1
    assert tracked.are_tracked(["a", "b"]) == [False, True]


def test_two_recruits_on_one_walk(any_server: AnyServer) -> None:
    source = TableSource(f"{i:03}" for i in range(30))
    tracked = TrackedSet(any_server.client(), "queued", source)

    def other(_: str) -> None:
        source.after = lambda _: None
        TrackQueued(tracked).perform(slice_of(10))

    source.after = other
    with pytest.raises(Aborted):
        TrackQueued(tracked).perform(slice_of(10))
    assert tracked.count() == 10
    assert [TrackQueued(tracked).perform(slice_of(10)) for _ in range(2)] == [10, 10]


def test_what_was_added_counts_though_another_recruit_has_moved_the_cursor(
    any_server: AnyServer,
) -> None:
    client = any_server.client()
    source = TableSource(f"{i:03}" for i in range(30))
    tracked = TrackedSet(client, "queued", source)

    def move(question: str) -> None:
        if question == "with_work":
            client.set(tracked.names.cursor, "004")

    source.after = move
    assert TrackQueued(tracked).perform(slice_of(10)) == 10
    assert tracked.count() == 10
    assert client.get(tracked.names.cursor) == b"004", "the other recruit's place stands"
    assert TrackQueued(tracked).perform(slice_of(10)) == 5
    # All of this page is tracked already, so that only the cursor would have moved.
    client.delete(tracked.names.cursor)
    source.after = lambda _: client.set(tracked.names.cursor, "005")
    with pytest.raises(Aborted):
        TrackQueued(tracked).perform(slice_of(10))


def test_what_was_added_counts_though_no_time_is_left_for_the_cursor(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TableSource(f"{i:03}" for i in range(30))
    tracked = TrackedSet(redis7.client(), "queued", source)

    def late(self: Attempt, *commands: Any) -> Any:
        raise OutOfTime("the slice's time is used up")

    monkeypatch.setattr(Attempt, "commit", late)
    assert TrackQueued(tracked).perform(slice_of(10)) == 10
    assert tracked.count() == 10
    with pytest.raises(OutOfTime):
        TrackQueued(tracked).perform(slice_of(10))


def test_both_jobs_heal_any_cursor(any_server: AnyServer) -> None:
    client = any_server.client()
    source = TableSource(["a", "b", "c"])
    tracked = TrackedSet(client, "queued", source)
    client.set(tracked.names.cursor, b"\xff\xfe")
    assert TrackQueued(tracked).perform(slice_of(50)) == 0
    assert TrackQueued(tracked).perform(slice_of(50)) == 3


def test_jobs_refuse_foreign_data(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", TableSource(["a"]), sub_sets=1)
    tracked.track("b")
    client.hset(tracked.names.keys(0)[1], "mark", "9:1")
    for job in (TrackQueued(tracked), UntrackDone(tracked)):
        with pytest.raises(LayoutError, match="nothing was changed"):
            job.perform(slice_of(5))
    assert client.scard(tracked.names.keys(0)[0]) == 1
    other = TrackedSet(client, "queued", TableSource(["a"]), sub_sets=2)
    with pytest.raises(LayoutError, match="laid out over 1 sub-sets"):
        UntrackDone(other).perform(slice_of(5))


async def test_jobs_work_for_asyncio_sets_too(redis7: RedisServer) -> None:
    async with redis7.async_client() as client:
        tracked = AsyncTrackedSet(client, "queued", TableSource(["a"]))
        assert TrackQueued(tracked).perform(slice_of(50)) == 1
        assert await tracked.is_tracked("a")


def test_a_full_server_still_frees_memory(start_redis: Any) -> None:
    server = start_redis(7, maxmemory_policy="noeviction")
    client = server.client()
    tracked = TrackedSet(client, "queued", TableSource(), sub_sets=2)
    tracked.track(range(20))
    client.config_set("maxmemory", "1mb")
    job = UntrackDone(tracked)
    assert job.perform(slice_of(5)) == 5
    assert tracked.count() == 15


def test_a_source_that_is_cold_leaves_redis_alone(redis7: RedisServer) -> None:
    class Cold(TableSource):
        def require_ready(self) -> None:
            raise Skipped("cold")

    client = redis7.client()
    tracked = TrackedSet(client, "queued", Cold(["a"]))
    recruiter = always(seconds=5.0)
    recruiter.install(TrackQueued(tracked), rate=1.0)
    assert recruiter.enlist() is Outcome.SKIPPED
    assert recruiter.stats()["jobs"]["track_queued.queued"]["skipped"] == 1
    assert client.dbsize() == 0


def test_jobs_want_a_set_with_a_source() -> None:
    for bad in (None, TrackedSet(redis.Redis(), "queued")):
        with pytest.raises(ConfigurationError):
            UntrackDone(bad)
        with pytest.raises(ConfigurationError):
            TrackQueued(bad)


@pytest.mark.slow
@pytest.mark.parametrize(("sub_sets", "most"), [(256, 0.10), (16, 1.0)])
def test_a_busy_application_aborts_few_removals(
    redis7: RedisServer, sub_sets: int, most: float
) -> None:
    # 1,000 calls a second and a question of 10 ms: ten calls fall into each attempt.
    chance = random.Random(7)
    # Some have work, or the job would take the table for a wrong one.
    source = TableSource([str(number) for number in range(0, 20_000, 20)])
    tracked = TrackedSet(redis7.client(), "queued", source, sub_sets=sub_sets)
    tracked.track(range(20_000))

    def be_busy(_: str) -> None:
        for _ in range(10):
            change = chance.choice((tracked.track, tracked.untrack))
            change(chance.randrange(20_000, 30_000))

    source.after = be_busy
    job = UntrackDone(tracked)
    aborted = 0
    for _ in range(400):
        try:
            assert job.perform(slice_of(5)) > 0
        except Aborted:
            aborted += 1
    assert aborted / 400 <= most
    # The other case shows that without enough sub-sets it would be far more.
    assert (aborted / 400 > 0.2) == (sub_sets == 16)


def test_dry_runs_count_and_change_nothing(any_server: AnyServer) -> None:
    client = any_server.client()
    source = TableSource(["a", "b", "c"])
    tracked = TrackedSet(client, "queued", source, sub_sets=1)
    tracked.track(["a", "done"])
    ids, state = tracked.names.keys(0)

    def everything() -> tuple[Any, ...]:
        cursor = client.get(tracked.names.cursor)
        return (client.smembers(ids), client.hgetall(state), cursor, len(list(client.scan_iter())))

    before = everything()
    # Fewer rows than it may look at: the walk would end, and a full page would move its cursor.
    for limit in (50, 3):
        assert TrackQueued(tracked, dry_run=True).perform(slice_of(limit)) == 2
    assert UntrackDone(tracked, dry_run=True).perform(slice_of(5)) == 1
    assert everything() == before
    assert TrackQueued(tracked).perform(slice_of(50)) == 2
    assert UntrackDone(tracked).perform(slice_of(5)) == 1


def test_their_backlogs(any_server: AnyServer) -> None:
    source = TableSource(["a", "b", "c"])
    tracked = TrackedSet(any_server.client(), "queued", source, sub_sets=4)
    assert TrackQueued(tracked).structures == UntrackDone(tracked).structures == (tracked,)
    assert UntrackDone(tracked).backlog() == Backlog(0, 0.0, "tracked ids without work")
    assert TrackQueued(tracked).backlog() == Backlog(3, None, "ids to track")
    tracked.track(["a", "b", "c"])
    assert TrackQueued(tracked).backlog() == Backlog(0, 0.0, "ids to track")
    assert UntrackDone(tracked).backlog() == Backlog(
        0, 0.0, "tracked ids without work", exact=False
    )
    source.work.clear()
    assert UntrackDone(tracked).backlog() == Backlog(
        3, None, "tracked ids without work", exact=False
    )


def test_a_slice_says_what_its_page_lacks(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(), "queued", TableSource(["a", "b"]), sub_sets=4)
    slice = slice_of(50)
    assert TrackQueued(tracked).perform(slice) == slice.backlog == 2


def test_slices_project_a_backlog_once_they_have_asked_about_enough_ids(
    any_server: AnyServer,
) -> None:
    """A quarter of 400 tracked ids has no work; nothing is told before 50 ids were asked about."""
    names = [f"{i:03}" for i in range(400)]
    source = TableSource(names[100:])
    # So few sub-sets that a slice's look at some of them is one at all of them.
    tracked = TrackedSet(any_server.client(), "queued", source, sub_sets=1)
    empty = slice_of(20)
    assert UntrackDone(tracked).perform(empty) == 0
    assert empty.backlog == 0
    tracked.track(names)
    job = UntrackDone(tracked, dry_run=True, random=random.Random(9).random)
    told = []
    for _ in range(40):
        slice = slice_of(20)
        job.perform(slice)
        told.append(slice.backlog)
    assert told[:2] == [None, None]
    assert all(each is not None and 50 < each < 160 for each in told[12:])


def test_a_set_that_has_become_empty_has_no_backlog(any_server: AnyServer) -> None:
    tracked = TrackedSet(any_server.client(), "queued", TableSource([]), sub_sets=64)
    slice = slice_of(20)
    assert UntrackDone(tracked).perform(slice) == 0
    assert slice.backlog == 0


def test_a_tracked_set_tells_of_itself(any_server: AnyServer) -> None:
    client = any_server.client()
    tracked = TrackedSet(client, "queued", sub_sets=4)
    (check,) = tracked.inspect(tracked.check_steps())
    assert (check.level, check.said) == ("note", "tracked set queued: nothing has been written yet")
    assert client.dbsize() == 0
    tracked.track(["a", "b"])
    assert tracked.inspect(tracked.size_steps()) == 2
    (check,) = tracked.inspect(tracked.check_steps())
    assert (check.level, check.said) == ("ok", "tracked set queued: 4 sub-sets")
    other = TrackedSet(client, "queued", sub_sets=8)
    (check,) = other.inspect(other.check_steps())
    assert check.level == "fault"
    assert "give that number as sub_sets" in check.said
