"""The dashboard's questions: which ones, how often, and to which servers."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.dashboards import make_app
from support.patience import patient
from support.servers import AnyServer
from workstealing import Recruiter
from workstealing.dashboard.queries import Cached, structure_figures
from workstealing.dashboard.watched import Backlog, Watched, watch, watch_all
from workstealing.jobs import HashFieldExpiry, IckReaper, KeyExpiry
from workstealing.structures import DurableKeys, Ick, ShardedIck, TrackedSet, VolatileHashes
from workstealing.testing import ManualClock

__all__ = ["patient"]


def test_an_answer_is_good_for_some_seconds(manual_clock: ManualClock) -> None:
    asked: list[int] = []
    cached = Cached(lambda: asked.append(1) or len(asked), 2.0, manual_clock)  # type: ignore[func-returns-value]
    assert [cached.get(), cached.get()] == [1, 1]
    manual_clock.advance(1.9)
    assert cached.get() == 1
    manual_clock.advance(0.2)
    assert cached.get() == 2
    cached.forget()
    assert cached.get() == 3


def test_while_one_asks_the_others_have_the_old_answer(manual_clock: ManualClock) -> None:
    begun, go_on = threading.Event(), threading.Event()
    answers = iter(["old", "new", "newest"])

    def ask() -> str:
        answer = next(answers)
        if answer == "new":
            begun.set()
            assert go_on.wait(120)
        return answer

    cached = Cached(ask, 2.0, manual_clock)
    assert cached.get() == "old"
    manual_clock.advance(3)
    asking = threading.Thread(target=cached.get)
    asking.start()
    assert begun.wait(120)
    assert cached.get() == "old"
    # An answer from before a change does not count as one after it.
    cached.forget()
    go_on.set()
    assert cached.get() == "newest"
    asking.join(120)


def test_an_error_of_asking_is_not_remembered(manual_clock: ManualClock) -> None:
    answers = iter([ValueError("once"), "then"])

    def ask() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cached = Cached(ask, 2.0, manual_clock)
    with pytest.raises(ValueError, match="once"):
        cached.get()
    assert cached.get() == "then"


def test_every_server_tells_sizes_and_what_is_due(any_server: AnyServer) -> None:
    client = any_server.client()
    hashes = VolatileHashes(client, namespace="items", backend="emulated")
    late = VolatileHashes(client, namespace="items", backend="emulated", clock_shift_ms=60_000)
    keys = DurableKeys(client, namespace="locks")
    late_keys = DurableKeys(client, namespace="locks", clock_shift_ms=60_000)
    tracked = TrackedSet(client, "queued")
    sharded = ShardedIck(client, "shared", 4)
    assert [structure_figures(watch(each)).size for each in (hashes, keys, tracked, sharded)] == [
        0
    ] * 4
    for number in range(40):
        hashes.hsetex(f"item:{number}", mapping={"x": 1, "y": 2}, ex=30)
        keys.set(f"lock:{number}", 1, ex=30 if number % 4 else 3000)
    tracked.track([str(number) for number in range(50)])
    sharded.add([f"m{number}" for number in range(20)])
    found = [structure_figures(watch(each)) for each in (late, late_keys, tracked, sharded)]
    assert [each.trouble for each in found] == [None] * 4
    assert [each.size for each in found] == [40, 40, 50, 20]
    assert [each.due.count for each in found[:2] if each.due] == [80, 30]
    assert [each.due for each in found[2:]] == [None, None]
    assert [each.dead_size for each in found] == [None, None, None, 0]


def test_every_server_shows_a_page(any_server: AnyServer, never_recruiter: Recruiter) -> None:
    client = any_server.client()
    hashes = VolatileHashes(client, namespace="items")
    hashes.hsetex("a", mapping={"x": 1}, ex=300)
    never_recruiter.install(HashFieldExpiry(hashes), rate=0.5)
    page = make_app(never_recruiter, client).test_client().get("/ws/").text
    assert "could not be asked" not in page
    assert ">items</bdi>" in page


def test_a_native_namespace_has_no_size_of_its_own(redis8: AnyServer) -> None:
    hashes = VolatileHashes(redis8.client(), namespace="items", backend="native")
    hashes.hsetex("a", mapping={"x": 1}, ex=300)
    figures = structure_figures(watch(hashes))
    assert (figures.size, figures.trouble) == (None, None)


def test_structures_come_once_and_the_job_knows_more(client: Any) -> None:
    ick = Ick(client, "dirty")
    reaper = IckReaper(ick, lease=60)
    hashes = VolatileHashes(client, namespace="items")
    found = watch_all([ick, hashes, hashes], [reaper, HashFieldExpiry(hashes)])
    assert [(each.kind, each.name) for each in found] == [
        ("Ick", "dirty"),
        ("volatile hashes", "items"),
    ]
    assert found[0].due is not None
    assert found[0].job == reaper.name
    assert watch(ick).due is None


def test_jobs_that_are_about_no_structure_are_passed_over(client: Any) -> None:
    recruiter = Recruiter()
    recruiter.job(rate=0.1)(lambda slice: 0)
    recruiter.install(KeyExpiry(DurableKeys(client, namespace="locks")), rate=0.1)
    assert [each.name for each in watch_all((), recruiter.jobs().values())] == ["locks"]


def test_what_fails_leaves_the_rest_unknown() -> None:
    def broken() -> Any:
        raise OSError("a password")

    figures = structure_figures(Watched("mine", "own", lambda: 3, broken, dead_size=lambda: 4))
    assert (figures.size, figures.due, figures.dead_size) == (3, None, None)
    assert figures.trouble == "the own 'mine' could not be asked: OSError"


@pytest.mark.parametrize(
    "nonsense",
    [
        {"size": lambda: "many"},
        {"size": lambda: float("nan")},
        {"due": lambda: 5},
        {"due": lambda: Backlog("x", 1.0, "y")},  # type: ignore[arg-type]
        {"dead_size": lambda: float("nan")},
        {"dead_size": lambda: "x", "dead": list},
    ],
)
def test_a_structure_that_answers_nonsense_does_not_take_the_page_down(
    never_recruiter: Recruiter, client: Any, nonsense: dict[str, Any]
) -> None:
    app = make_app(
        never_recruiter, client, structures=[Watched(name="mine", kind="own", **nonsense)]
    )
    answer = app.test_client().get("/ws/")
    assert answer.status_code == 200
    assert "the own &#39;mine&#39; could not be asked" in answer.text
    tiles = app.test_client().get("/ws/view.json").get_json()["tiles"]
    # The number of dead items is unknown there, and that is not 0.
    assert [tile["value"] for tile in tiles if tile["label"] == "Dead"] == ["\N{EN DASH}"]


def test_dead_items_of_a_users_own_structure() -> None:
    class Box:
        def __init__(self) -> None:
            self.items = [f"item {number:03}" for number in range(90, -1, -1)]

        def dead(self, n: int = 100) -> list[str]:
            return self.items[:n]

        def revive(self, *members: Any) -> int:
            return len(members)

        def discard(self, *members: Any) -> int:
            return len(members)

    box = Box()
    watched = Watched(
        "mine", "own", due=lambda: Backlog(1, None, "things"), dead=lambda: [("p", box)]
    )
    figures = structure_figures(watched)
    # The order is the same each time, however they are listed.
    assert [each.member for each in figures.dead] == [f"item {number:03}" for number in range(91)]
    assert {(each.part, each.attempts, each.died) for each in figures.dead} == {("p", None, None)}
