"""The pages of the jobs: each job has one, its code runs, and its costs are counted again."""

from __future__ import annotations

import importlib.util
import inspect
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy

from support.pages import blocks_of, run_page
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Fleet, Recruiter, jobs
from workstealing.errors import Aborted
from workstealing.recruiting import Slice
from workstealing.recruiting.job import Job
from workstealing.structures import (
    DurableKeys,
    Ick,
    Log,
    RedisStore,
    ShuffleQueue,
    TimeShardQueue,
    VolatileHashes,
)

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in (DOCS / "jobs").glob("*.md"))
JOBS = sorted(
    name
    for name in jobs.__all__
    if inspect.isclass(getattr(jobs, name)) and issubclass(getattr(jobs, name), Job)
)


HOUR_MS = 3_600_000


def text_of(page: str) -> str:
    return (DOCS / "jobs" / page).read_text("utf-8")


@pytest.fixture(scope="module")
def titles(load_script: Callable[[str], ModuleType]) -> dict[str, str]:
    """The titles below "Jobs" in the order of the site: page -> title."""
    entries: list[Any] = next(
        each["Jobs"] for each in load_script("docs_site").navigation() if "Jobs" in each
    )
    return {
        page: title for entry in entries if isinstance(entry, dict) for title, page in entry.items()
    }


@pytest.mark.parametrize("name", JOBS)
def test_each_job_is_found_by_its_name(name: str, titles: dict[str, str]) -> None:
    (page,) = [page for page, title in titles.items() if re.search(rf"\b{name}\b", title)]
    text = (DOCS / page).read_text("utf-8")
    assert re.search(rf"(?:import|,) [\w, ]*\b{name}\b", text) or name == "Leftovers", page
    # The overview leads to that page.
    to = page.removeprefix("jobs/") if page.startswith("jobs/") else f"../{page}"
    assert f"[{name}]({to})" in text_of("index.md")


def test_no_page_is_left_out(titles: dict[str, str]) -> None:
    assert {f"jobs/{page}" for page in PAGES} - {"jobs/index.md"} <= set(titles)


@pytest.mark.parametrize("name", JOBS)
def test_the_overview_has_the_right_limits(name: str) -> None:
    row = re.search(rf"^\| \[{name}\].*\| ([\d,]+) \|$", text_of("index.md"), re.M)
    assert row is not None
    parameters = inspect.signature(getattr(jobs, name).__init__).parameters
    of_rules = inspect.signature(jobs.Leftovers.__init__).parameters
    limit = (parameters.get("limit") or of_rules["limit"]).default
    assert int(row[1].replace(",", "")) == limit


@pytest.mark.parametrize("name", JOBS)
def test_each_argument_is_named(name: str, titles: dict[str, str]) -> None:
    (page,) = [page for page, title in titles.items() if re.search(rf"\b{name}\b", title)]
    text = (DOCS / page).read_text("utf-8")
    given = set(inspect.signature(getattr(jobs, name).__init__).parameters)
    for argument in given - {"self", "clock", "options"}:
        assert re.search(rf"`{argument}\b", text), (name, argument)


# ---- the code ------------------------------------------------------------------------------------


def old_hashes(client: Any, number: int = 10) -> None:
    """Write hashes of one field each, which expired an hour ago."""
    hashes = VolatileHashes(client, "items", backend="emulated", clock_shift_ms=-HOUR_MS)
    for each in range(number):
        hashes.hsetex(f"item:{each}", mapping={"likes": 1}, ex=1)


def live_hashes(client: Any, number: int = 10) -> None:
    """Write hashes of one field each, whose deadlines come."""
    hashes = VolatileHashes(client, "items", backend="emulated")
    for each in range(number):
        hashes.hsetex(f"item:{each}", mapping={"likes": 1}, ex=1000)


def old_keys(client: Any, number: int = 10) -> None:
    """Write durable keys whose deadlines have passed."""
    keys = DurableKeys(client, "leases", clock_shift_ms=-HOUR_MS)
    for each in range(number):
        keys.set(f"report:{each}", "text", ex=1)


def reserved(client: Any, number: int = 10) -> None:
    """Let a consumer reserve members, and never come back."""
    dirty = Ick(client, "dirty:documents")
    dirty.add({f"document:{each}": each for each in range(number)})
    dirty.reserve(number)
    time.sleep(0.01)


def in_dead_hands(client: Any, number: int = 10) -> None:
    """Let a consumer read messages, and never come back."""
    queue = ShuffleQueue(client, "predictions")
    for each in range(number):
        queue.write(f"tenant {each}", {"number": each})
    for _ in range(number):
        assert queue.read("workers", "dead") is not None
    time.sleep(0.01)


def idle_queue(client: Any) -> None:
    """Leave a queue whose time to live has passed."""
    queue = ShuffleQueue(client, "predictions")
    queue.write("tenant", {"number": 1})
    assert queue._place is not None
    client.zadd(queue._place[0], {queue.keys.name: 1})


def old_layout(client: Any) -> None:
    """Write hashes with sorted sets of deadlines beside them."""
    for each in range(10):
        client.hset(f"hash:{each}", "likes", 1)
        client.zadd(f"zset:{each}", {"likes": time.time() + 900})


def tags(client: Any) -> None:
    """Write a tag set of which no member's key is there."""
    client.sadd("conj:shop:id=1", *(f"page:{each}" for each in range(10)))


def endless(client: Any) -> None:
    """Write keys without a time to live."""
    for each in range(10):
        client.set(f"cart:{each}", "x")


def acknowledged(client: Any) -> None:
    """Let a group acknowledge the entries of a stream."""
    client.xgroup_create("events:1", "mailers", id="0", mkstream=True)
    for each in range(10):
        client.xadd("events:1", {"n": each})
    ((_, page),) = client.xreadgroup("mailers", "one", {"events:1": ">"})
    client.xack("events:1", "mailers", *(entry for entry, _ in page))


@dataclass(frozen=True)
class Runs:
    """A page whose code runs on one server.

    Fields: fill: makes garbage before; items: that its jobs handle; installed: their names;
    instead: texts of the page, and what stands in their place here.
    """

    installed: tuple[str, ...]
    fill: Callable[[Any], None] = lambda client: None
    items: int = 0
    version: int = 7
    instead: tuple[tuple[str, str], ...] = ()


RUNS = {
    "docs/jobs/hash_field_expiry.md": Runs(("hash_field_expiry.items",), old_hashes, 10),
    "docs/jobs/key_expiry.md": Runs(("key_expiry.leases",), old_keys, 10),
    "docs/jobs/ick_reaper.md": Runs(
        ("ick_reaper.dirty:documents",), reserved, 10, instead=(("lease=600", "lease=0.001"),)
    ),
    "docs/jobs/shuffle_queue_reaper.md": Runs(
        ("shuffle_queue_reaper.predictions",),
        in_dead_hands,
        10,
        instead=(("lease=60)", "lease=0.001)"),),
    ),
    "docs/jobs/fair_queue_reaper.md": Runs(("fair_queue_reaper.renderings",)),
    "docs/jobs/queue_expiry.md": Runs(("queue_expiry.shuffle_queues",), idle_queue, 1),
    "docs/jobs/time_shard_sweeper.md": Runs(("time_shard_sweeper.reminders",)),
    "docs/jobs/log_compactor.md": Runs(()),
    "docs/jobs/log_trimmer.md": Runs(("log_trimmer.activity",), items=7),
    "docs/jobs/adopt_hashes.md": Runs(
        ("adopt_hashes.users", "hash_field_expiry.users"), old_layout, 10
    ),
    "docs/jobs/migrations.md": Runs(
        ("hash_field_expiry.items", "migrate_to_native.items"), live_hashes, 10, version=8
    ),
    "docs/jobs/native_field_audit.md": Runs(("native_field_audit.items",), version=8),
    "docs/jobs/celery_leftovers.md": Runs(("celery_leftovers",)),
    "docs/jobs/rq_leftovers.md": Runs(("rq_leftovers",)),
    "docs/jobs/stream_leftovers.md": Runs(("stream_leftovers",), acknowledged, 10),
    "docs/jobs/tag_set_leftovers.md": Runs(("tag_set_leftovers",), tags, 10),
    "docs/jobs/family_leftovers.md": Runs(("family_leftovers",), endless, 10),
    "docs/jobs/library_leftovers.md": Runs(
        ("huey_leftovers", "langgraph_leftovers", "feast_leftovers")
    ),
}
ELSEWHERE = {"index.md", "tracking.md", "fleet_rebalance.md"}
"""Pages without code, and those that the tests below run."""


def test_each_page_runs_or_has_no_code() -> None:
    assert set(PAGES) == {each.rpartition("/")[2] for each in RUNS} | ELSEWHERE
    assert not blocks_of("docs/jobs/index.md")


def worked(job: Any, enough: int) -> int:
    """Perform slices until so many items were handled, or until many slices found nothing."""
    handled = nothing = 0
    while handled < enough and nothing < 100:
        try:
            done = job.perform(Slice(job.limit, 5.0))
        except Aborted:
            done = 0
        handled += done
        nothing += not done
    return handled


@pytest.mark.parametrize("page", RUNS)
def test_the_code_of_a_page_runs(page: str, request: pytest.FixtureRequest) -> None:
    runs = RUNS[page]
    server: RedisServer = request.getfixturevalue(f"redis{runs.version}")
    runs.fill(server.client())
    replace = dict(runs.instead)
    if any("redis.Redis()" in block.code for block in blocks_of(page)):
        replace["redis.Redis()"] = "server.client()"
    names = run_page(page, {"server": server}, replace=replace)
    if not runs.installed:
        return
    recruiter: Recruiter = names["recruiter"]
    assert set(recruiter.jobs()) == set(runs.installed)
    handled = sum(worked(job, max(1, runs.items)) for job in recruiter.jobs().values())
    assert handled >= runs.items


def test_the_code_of_the_tracking_jobs_runs(redis7: RedisServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE tasks (task_id int PRIMARY KEY, identifier text, state text)"
        )
        connection.exec_driver_sql("INSERT INTO tasks VALUES (1, 'item17', 'queued')")
    engine.dispose()
    replace = {"redis.Redis()": "server.client()", "sqlite:///tasks.db": url}
    names = run_page("docs/jobs/tracking.md", {"server": redis7}, replace=replace)
    names["source"].warm_up(20.0)
    names["tracked"].track("item18")
    adding, removing = names["recruiter"].jobs().values()
    assert (worked(adding, 1), worked(removing, 1)) == (1, 1)
    assert names["tracked"].are_tracked(["item17", "item18"]) == [True, False]
    names["source"].close()
    names["engine"].dispose()


def test_the_code_of_the_rebalance_runs(start_redis: Callable[..., RedisServer]) -> None:
    servers = [start_redis() for _ in "abc"]
    replace = {f"redis://10.0.0.{number}": each.url for number, each in enumerate(servers, 1)}
    old = VolatileHashes(Fleet({"a": servers[0].url, "b": servers[1].url}), "items")
    for number in range(30):
        old.hsetex(f"item:{number}", mapping={"likes": number}, ex=300)
    names = run_page("docs/jobs/fleet_rebalance.md", replace=replace)
    (job,) = names["recruiter"].jobs().values()
    waiting = job.backlog().count
    assert waiting
    assert worked(job, waiting) == waiting
    assert job.backlog() == jobs.Backlog(0, 0.0, "keys at their former homes")


# ---- the costs -----------------------------------------------------------------------------------


def full_log(client: Any) -> None:
    """Append 540 entries, in blocks of 4."""
    Log(client, "log", 4).append(*(b"entry" for _ in range(540)))


def consumed(client: Any) -> None:
    """Acknowledge 60 messages of the first period, two periods later."""
    for each in range(60):
        at_period(client, 0).put(f"message {each}", 1.0)
    consumers = at_period(client, 2)
    for taken in consumers.take_many("consumer", 60, 600.0):
        assert consumers.ack(taken)


class _Wall:
    def __init__(self, period: int) -> None:
        self._seconds = 60.0 * (6_000 + period) + 1.0

    def time(self) -> float:
        return self._seconds


def at_period(client: Any, number: int) -> TimeShardQueue:
    """Return a queue whose clock stands in this period."""
    return TimeShardQueue(RedisStore(client), "first", 6, 60, clock=_Wall(number))


COSTS: dict[str, tuple[Callable[[Any], None], Callable[[Any], Job]]] = {
    "hash_field_expiry.md": (
        lambda client: old_hashes(client, 60),
        lambda client: jobs.HashFieldExpiry(VolatileHashes(client, "items")),
    ),
    "key_expiry.md": (
        lambda client: old_keys(client, 100),
        lambda client: jobs.KeyExpiry(DurableKeys(client, "leases")),
    ),
    "ick_reaper.md": (
        lambda client: reserved(client, 40),
        lambda client: jobs.IckReaper(Ick(client, "dirty:documents"), 0.001),
    ),
    "shuffle_queue_reaper.md": (
        lambda client: in_dead_hands(client, 60),
        lambda client: jobs.ShuffleQueueReaper(ShuffleQueue(client, "predictions"), lease=0.001),
    ),
    "time_shard_sweeper.md": (
        consumed,
        lambda client: jobs.TimeShardSweeper(at_period(client, 4)),
    ),
    "log_compactor.md": (
        full_log,
        lambda client: jobs.LogCompactor(Log(client, "log", 4), cold=0),
    ),
    "log_trimmer.md": (
        full_log,
        lambda client: jobs.LogTrimmer(Log(client, "log", 4), max_entries=400),
    ),
}


@pytest.fixture(scope="module")
def relay() -> type[Any]:
    """The relay of the benchmarks, which counts round trips."""
    path = ROOT / "benchmarks" / "relay.py"
    spec = importlib.util.spec_from_file_location("relay_of_the_benchmarks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: type[Any] = module.Relay
    return found


def said_trips(page: str) -> list[tuple[int, int]]:
    """Return the round trips in a page's first table of costs, as bounds."""
    table = text_of(page).partition("| round trips |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| [^|]+ \| (\d+)(?: to (\d+))? \|", table, re.M)
    return [(int(least), int(most or least)) for least, most in found]


@pytest.mark.parametrize("page", COSTS)
def test_a_slice_takes_the_round_trips_that_its_page_says(
    page: str, redis7: RedisServer, relay: type[Any]
) -> None:
    fill, make = COSTS[page]
    fill(redis7.client())
    idle, working, *_ = said_trips(page)
    with relay(redis7.port) as between:
        client = redis7.client(port=between.port)
        job = make(client)
        # It connects, and reads the layout.
        job.perform(Slice(job.limit, 5.0))
        seen: dict[bool, set[int]] = {True: set(), False: set()}
        for _ in range(200):
            between.round_trips = 0
            handled = job.perform(Slice(job.limit, 5.0))
            seen[bool(handled)].add(between.round_trips)
            if not handled and len(seen[True]) and job.backlog().count == 0:
                break
        client.close()
        for each in job.structures:
            each.job_client.close()
    assert seen[True], "no slice found anything"
    assert seen[False], "every slice found something"
    assert all(idle[0] <= each <= idle[1] for each in seen[False]), seen
    assert all(working[0] <= each <= working[1] for each in seen[True]), seen
