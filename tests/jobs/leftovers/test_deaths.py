"""The jobs of rules die at each of their commands: nothing is lost, and nothing stays for ever.

An item that was removed is noted, and kept if `undo` was given, or it is still there. What such a
job writes down for itself has a time to live at every moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.leftover_jobs import laps, to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.rules import Past, Replies
from support.servers import RedisServer
from workstealing.jobs import StreamLeftovers
from workstealing.jobs.family_leftovers import DeadTags
from workstealing.jobs.leftovers import Leftovers
from workstealing.jobs.leftovers.undoing import undo
from workstealing.recruiting import Slice

pytestmark = pytest.mark.real

DEAD = [b"session:0", b"session:1", b"session:2"]
LIVE = b"session:live"


def filled(client: Any) -> dict[bytes, bytes]:
    """Make garbage and a live session; return the dumps of all."""
    client.flushall()
    client.script_flush()
    for number, name in enumerate(DEAD):
        client.hset(name, mapping={"ends": 1, "user": number})
    client.hset(LIVE, "ends", 2_000_000_000)
    client.sadd("conj:a", "gone", "away", "there")
    client.set("there", 1)
    return {key: client.dump(key) for key in [*DEAD, LIVE]}


def job_on(client: Any, **options: Any) -> Leftovers:
    return Leftovers(
        client, [Past(), DeadTags()], name="j", dry_run=False, random=Turns(), **options
    )


class Turns:
    """Chance that lets the two rules take turns."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self) -> float:
        self._number += 1
        return 0.5 * (self._number // 2 % 2)


def slices_through(door: FaultyServer, make: Callable[[Any], Leftovers], slices: int = 2) -> Any:
    def work() -> None:
        job = make(redis.Redis(port=door.port, protocol=2))
        for _ in range(slices):
            job.perform(Slice(10, 60.0))

    return work


def lives_for_ever(client: Any) -> list[bytes]:
    """Return the job's own keys that have no time to live."""
    mine = [key for key in client.scan_iter(count=1000) if b":ws:" in key]
    return [key for key in mine if client.ttl(key) < 0]


def notes(client: Any, what: str) -> list[dict[bytes, bytes]]:
    found: list[dict[bytes, bytes]] = []
    for stream in client.scan_iter(f"*:j:{what}"):
        found += [fields for _, fields in client.xrange(stream)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
def test_the_attempt(redis7: RedisServer, door: FaultyServer, keeps: bool) -> None:
    direct = redis7.client()
    before = filled(direct)
    options: dict[str, Any] = {"undo": 600} if keeps else {}

    def make(client: Any) -> Leftovers:
        return job_on(client, **options)

    for death in every_death([door], slices_through(door, make), lambda: filled(direct)):
        assert lives_for_ever(direct) == [], death
        gone = {key for key in DEAD if not direct.exists(key)}
        noted = [each[b"key"] for each in notes(direct, "removed") if each[b"type"] == b"key"]
        assert sorted(noted) == sorted(gone), death
        for each in set(before) - gone:
            assert direct.dump(each) == before[each], death
        if keeps:
            kept = {each[b"key"]: each[b"content"] for each in notes(direct, "kept")}
            assert {key: kept[key] for key in gone} == {key: before[key] for key in gone}, death
        to_the_end(make(direct))
        assert not direct.exists(*DEAD), death
        assert direct.exists(LIVE), death
        assert direct.smembers("conj:a") == {b"there"}, death
        if keeps:
            assert all(each.is_back for each in undo(direct, "j")), death
            assert {key: direct.dump(key) for key in before} == before, death
            assert direct.scard("conj:a") == 3, death


@pytest.mark.slow
def test_the_script_on_a_full_server(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    direct = server.client()
    direct.config_set("maxmemory-policy", "noeviction")

    def fill_up() -> None:
        direct.config_set("maxmemory", 0)
        filled(direct)
        direct.config_set("maxmemory", 1)

    with FaultyServer(server.port) as door:
        for death in every_death([door], slices_through(door, job_on), fill_up):
            assert lives_for_ever(direct) == [], death
            gone = {key for key in DEAD if not direct.exists(key)}
            noted = [each[b"key"] for each in notes(direct, "removed") if each[b"type"] == b"key"]
            assert sorted(noted) == sorted(gone), death
            assert direct.exists(LIVE), death
            laps(job_on(direct))
            assert not direct.exists(*DEAD), death
            assert direct.smembers("conj:a") == {b"there"}, death
            assert lives_for_ever(direct) == [], death


@pytest.mark.slow
def test_sightings_and_scripts_of_rules(redis7: RedisServer, door: FaultyServer) -> None:
    direct = redis7.client()

    def fill() -> None:
        filled(direct)
        direct.rpush("reply:1", "a")
        direct.xgroup_create("stream", "g", id="0", mkstream=True)
        for number in range(1, 151):
            direct.xadd("stream", {"n": number}, id=f"{number}-0")
        direct.xreadgroup("g", "c", {"stream": ">"}, count=140)
        direct.xack("stream", "g", *(f"{number}-0" for number in range(1, 131)))

    def work() -> None:
        client = redis.Redis(port=door.port, protocol=2)
        Leftovers(client, [Replies()], name="r", dry_run=False).perform(Slice(10, 60.0))
        job = StreamLeftovers(client, "stream", dry_run=False, name="j", random=lambda: 0.0)
        for _ in range(2):
            job.perform(Slice(10, 60.0))

    for death in every_death([door], work, fill):
        assert lives_for_ever(direct) == [], death
        assert direct.exists("reply:1"), death
        left = direct.xlen("stream")
        parts = sum(int(each[b"parts"]) for each in notes(direct, "removed"))
        assert left + parts == 150, death
        assert direct.xpending("stream", "g")["pending"] == 10, death
        to_the_end(StreamLeftovers(direct, "stream", dry_run=False, name="j"))
        assert [number for number, _ in direct.xrange("stream", count=1)] == [b"131-0"], death


@pytest.mark.slow
def test_undo(redis7: RedisServer, door: FaultyServer) -> None:
    direct = redis7.client()
    before = filled(direct)

    def prepare() -> None:
        filled(direct)
        to_the_end(job_on(direct, undo=600))

    def work() -> None:
        list(undo(redis.Redis(port=door.port, protocol=2), "j"))

    for death in every_death([door], work, prepare):
        kept = {each[b"key"] for each in notes(direct, "kept")}
        for key in DEAD:
            assert direct.exists(key) == (key not in kept), death
        assert direct.scard("conj:a") == (1 if b"conj:a" in kept else 3), death
        assert lives_for_ever(direct) == [], death
        assert all(each.is_back for each in undo(direct, "j")), death
        assert {key: direct.dump(key) for key in before} == before, death
        assert direct.scard("conj:a") == 3, death


def test_what_is_kept_ends_by_itself(redis7: RedisServer) -> None:
    client = redis7.client()
    filled(client)
    to_the_end(job_on(client, undo=1))
    assert notes(client, "kept")
    time.sleep(1.2)
    assert not notes(client, "kept")
    assert not list(undo(client, "j"))
