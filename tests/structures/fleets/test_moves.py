"""A further node: keys move to their new home once, at every crash point, and readers see them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import redis

from support.deaths import every_death
from support.faulty_server import FaultyServer
from support.fleet_moves import DONE, NEW, OLD, both, fleet, moving, work_off
from support.pages import running
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import AsyncFleet, Fleet
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import FleetRebalance, MigrateToNative
from workstealing.recruiting.job import Backlog
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.store.operations import run
from workstealing.structures import (
    AsyncDurableKeys,
    AsyncVolatileHashes,
    Ick,
    VolatileHashes,
)
from workstealing.structures.on_fleet import carry, carry_in, carry_out
from workstealing.testing import ManualClock

pytestmark = pytest.mark.real

FEW = 12
"""So many names of each kind, where every death fills the fleet anew."""


def fill(on: Fleet, count: int = 60) -> None:
    hashes, keys = both(on)
    for number in range(count):
        hashes.hsetex(f"h:{number}", mapping={"f": number}, ex=300)
        hashes.hset(f"h:{number}", "plain", number)
        keys.set(f"k:{number}", number, ex=300)
        hashes.hset(f"plain:{number}", "f", number)


def contents(server: RedisServer) -> dict[bytes, Any]:
    """Return what a server holds, as it would be dumped."""
    client = server.client()
    return {name: client.dump(name) for name in client.scan_iter()}


def check(on: Fleet, servers: dict[str, RedisServer], count: int = 60) -> None:
    """See that every key is whole, at its home alone, with its deadline and its entry."""
    hashes, keys = both(on)
    clients = {name: each.client() for name, each in servers.items()}
    for number in range(count):
        assert hashes.hmget(f"h:{number}", "f", "plain") == [str(number).encode()] * 2
        (left, never) = hashes.httl(f"h:{number}", "f", "plain")
        assert 200 < left <= 300
        assert never == -1
        assert keys.get(f"k:{number}") == str(number).encode()
        assert 200 < keys.ttl(f"k:{number}") <= 300
        for name in (f"h:{number}", f"k:{number}"):
            assert [node for node, each in clients.items() if each.exists(name)] == [on.home(name)]
    for structure in (hashes, keys):
        listed = 0
        for node, each in structure.on_nodes.items():
            pipeline = clients[node].pipeline(transaction=False)
            for shard in range(16):
                pipeline.zrange(each.names.due(shard), 0, -1)
            members = [member for some in pipeline.execute() for member in some]
            assert {on.home(member) for member in members} <= {node}
            listed += len(members)
        assert listed == count


@pytest.mark.slow
def test_a_key_that_comes_back_is_not_taken_for_carried(servers: dict[str, RedisServer]) -> None:
    """The marks of an earlier move made the new home refuse it, and the former copy was removed."""
    fill(fleet(servers, OLD))
    clients = {name: servers[name].client() for name in NEW}
    there = fleet(servers, NEW, previous=OLD)
    back = Fleet({name: clients[name] for name in OLD}, previous=clients)
    # Nobody removes the marks between two moves.
    for on in (there, back, there):
        for structure in both(on):
            work_off(FleetRebalance(structure, None))
    check(fleet(servers, NEW), servers)


@pytest.mark.parametrize("by", ["its first use", "the job"])
@pytest.mark.parametrize("kind", ["h", "k"])
@pytest.mark.parametrize("value", ["same", "other"])
def test_a_key_that_is_written_again_at_its_former_home_is_carried_again(
    servers: dict[str, RedisServer], kind: str, by: str, value: str
) -> None:
    """It was taken for carried, and its only copy was removed."""
    before, there = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    clients = {name: servers[name].client() for name in NEW}
    back = Fleet({name: clients[name] for name in OLD}, previous=clients)
    name = moving(there, kind)

    def of(on: Fleet) -> Any:
        return both(on)[kind == "k"]

    def write(on: Fleet, text: str) -> None:
        if kind == "h":
            of(on).hsetex(name, mapping={"f": text}, ex=300)
        else:
            of(on).set(name, text, ex=300)

    def read(on: Fleet) -> Any:
        return of(on).hget(name, "f") if kind == "h" else of(on).get(name)

    def carry_over(on: Fleet) -> None:
        if by == "the job":
            work_off(FleetRebalance(of(on), None))
        else:
            read(on)

    for between in ((), (back,)):
        write(before, "same")
        carry_over(there)
        assert read(there) == b"same"
        of(there).delete(name)
        for on in between:
            # The fleet was made smaller meanwhile, and larger again.
            carry_over(on)
        # This process has never heard of the further node.
        write(before, value)
        carry_over(there)
        assert read(fleet(servers, NEW)) == value.encode()
        assert not servers[there.former_home(name) or ""].client().exists(name)
        of(there).delete(name)


@pytest.mark.parametrize("kind", ["h", "k"])
def test_a_carrier_that_comes_late_removes_no_key_that_was_written_since(
    servers: dict[str, RedisServer], kind: str
) -> None:
    for pause in range(3):
        for each in servers.values():
            each.wipe()
        there, before = fleet(servers, NEW, previous=OLD), fleet(servers, OLD)
        name = moving(there, kind)
        slow, first = both(there)[kind == "k"], both(before)[kind == "k"]
        quick: Any = both(fleet(servers, NEW, previous=OLD))[kind == "k"]

        def write(text: str, first: Any = first, name: str = name) -> None:
            (first.hset(name, "f", text) if kind == "h" else first.set(name, text))

        write("first")
        old, new = slow.every_node[there.former_home(name)], slow.on_nodes[there.home(name)]
        steps = carry(old, new, name, (old.open(), new.open()))
        step = next(steps)
        for _ in range(pause):
            step = steps.send(run(step[0].client, step[1]))
        # Another carrier is quicker, the key is deleted, and an old process writes it once more.
        assert quick.exists(name) == 1
        quick.delete(name)
        write("second")
        with suppress(StopIteration):
            while True:
                step = steps.send(run(step[0].client, step[1]))
        after: Any = both(fleet(servers, NEW, previous=OLD))[kind == "k"]
        assert (after.hget(name, "f") if kind == "h" else after.get(name)) == b"second"


@pytest.mark.parametrize("by", ["its first use", "the job"])
@pytest.mark.parametrize("is_there", [True, False], ids=["stored before", "new"])
def test_a_computation_under_way_stores_nothing_at_a_former_home(
    servers: dict[str, RedisServer], by: str, is_there: bool
) -> None:
    """It stored an older result behind an invalidate(), and that was carried over."""
    before, there = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    name = moving(there, "h")
    source = ["old"]

    def of(on: Fleet) -> Any:
        return both(on)[0].cached(ttl=600, key=name, field="f")(lambda: source[0])

    def computes() -> str:
        read = source[0]
        source[0] = "new"
        if by == "the job":
            work_off(FleetRebalance(both(there)[0], None))
        of(there).invalidate()
        assert of(there)() == "new"
        of(there).invalidate()
        return read

    late: Any = both(before)[0].cached(ttl=600, key=name, field="f")(computes)
    if is_there:
        both(before)[0].hsetex(name, mapping={"other": 1}, ex=600)
    assert late() == "old"
    assert not servers[there.former_home(name) or ""].client().exists(name)
    assert of(fleet(servers, NEW, previous=OLD))() == "new"


@pytest.mark.parametrize("kind", ["h", "k"])
def test_a_former_home_that_takes_no_writes_holds_up_its_own_keys_only(
    servers: dict[str, RedisServer], kind: str
) -> None:
    fill(fleet(servers, OLD), FEW)
    after = fleet(servers, NEW, previous=OLD)
    structure: Any = both(after)[kind == "k"]
    absent = moving(after, f"{kind}:absent")
    former = servers[after.former_home(absent) or ""].client()
    structure.exists(f"{kind}:0")
    former.replicaof("127.0.0.1", 1)
    try:
        assert structure.exists(absent) == 0
    finally:
        former.replicaof("no", "one")


@pytest.mark.parametrize("kind", ["h", "k"])
def test_a_key_leaves_a_node_whose_memory_is_full(
    servers: dict[str, RedisServer], start_redis: Callable[..., RedisServer], kind: str
) -> None:
    nodes = {"a": start_redis(maxmemory_policy="noeviction"), "c": servers["c"]}
    before = fleet(nodes, ("a",))
    fill(before, FEW)
    after = fleet(nodes, ("a", "c"), previous=("a",))
    structure: Any = both(after)[kind == "k"]
    structure.open()
    nodes["a"].client().config_set("maxmemory", 1)
    names = [name for name in (f"{kind}:{n}" for n in range(FEW)) if after.former_home(name)]
    assert names
    assert structure.ttl(names[0]) != -2
    work_off(FleetRebalance(structure, None))
    assert [nodes["a"].client().exists(name) for name in names] == [0] * len(names)
    assert [nodes["c"].client().exists(name) for name in names] == [1] * len(names)


@pytest.mark.parametrize("backend", ["migrating", "leaving", "returning"])
def test_no_hash_is_carried_while_its_namespace_moves(
    servers: dict[str, RedisServer], backend: str
) -> None:
    """Its new home may have been searched for fields to hand back already."""
    fill(fleet(servers, OLD), 20)
    on = fleet(servers, NEW, previous=OLD)
    VolatileHashes(on, "h").hget("h:0", "f")
    for name in NEW:
        layout = {"structure": "volatile_hashes", "version": 1, "readable_from": 1}
        layout |= {"writable_from": 1, "index_shards": 16, "backend": backend}
        servers[name].client().hset("ws:h:layout", mapping=layout)
    before = {name: contents(each) for name, each in servers.items()}
    with pytest.raises(ConfigurationError, match="not during a migration"):
        work_off(FleetRebalance(VolatileHashes(on, "h"), match="h:*"))
    assert {name: contents(each) for name, each in servers.items()} == before


@pytest.mark.slow
def test_the_job_carries_the_share_of_the_further_node(servers: dict[str, RedisServer]) -> None:
    before = fleet(servers, OLD)
    fill(before)
    after = fleet(servers, NEW, previous=OLD)
    hashes, keys = both(after)
    waiting = [f"{kind}:{n}" for kind in ("h", "k") for n in range(60)]
    waiting = [name for name in waiting if after.former_home(name)]
    assert {after.home(name) for name in waiting} == {"c"}
    carried = work_off(FleetRebalance(hashes, None)) + work_off(FleetRebalance(keys, None))
    assert 10 < carried <= len(waiting)
    # Keys without a deadline stand in no due index: the pattern finds them.
    assert work_off(FleetRebalance(hashes, match="plain:*")) > 0
    final = fleet(servers, NEW)
    check(final, servers)
    for number in range(60):
        assert both(final)[0].hget(f"plain:{number}", "f") == str(number).encode()
    # Without previous=, the same job removes what the move has left.
    over = both(final)
    for structure in over:
        job = FleetRebalance(structure, None)
        assert job.backlog(60.0).count > 0
        assert "marks" in job.backlog(60.0).what
        while any(
            servers[node].client().exists(each.names.carried(shard))
            for node, each in structure.on_nodes.items()
            for shard in range(16)
        ):
            with suppress(redis.TimeoutError):
                job.perform(Slice(25, 10.0))
        assert job.backlog(60.0).count == 0
    check(final, servers)


@pytest.mark.parametrize("backend", ["emulated", "native"])
@pytest.mark.parametrize("by", ["slices", "a sweep"])
def test_a_key_that_ends_while_its_carrier_dies_leaves_nothing(
    start_redis: Callable[..., RedisServer], backend: str, by: str
) -> None:
    """Its token stayed on the node that had left the fleet: no index named the key any more."""
    former, other = (start_redis(8).client() for _ in range(2))
    before = VolatileHashes(Fleet({"a": former}), "h", backend=backend)
    before.hset("h:1", "f", "v")
    now = VolatileHashes(Fleet({"b": other}, previous={"a": former}), "h", backend=backend)
    old = now.every_node["a"]
    old.open()
    assert run(former, carry_out(old, b"h:1", old.layout))
    # As by its own time to live.
    former.delete("h:1")

    job = FleetRebalance(now, match="h:*")
    assert job.backlog(10.0).count == 1
    if by == "slices":
        work_off(job)
    else:
        for part in job.parts(2):
            sweep = job.for_part(part)
            while not sweep.is_drained:
                sweep.perform(Slice(25, 10.0))
        assert job.backlog(10.0) == DONE
    assert former.keys("*:leaving") == []


def test_a_dry_run_counts_and_changes_nothing(servers: dict[str, RedisServer]) -> None:
    fill(fleet(servers, OLD))
    on = fleet(servers, NEW, previous=OLD)
    before = {name: contents(server) for name, server in servers.items()}
    for structure in both(on):
        kind = structure.namespace
        moving = sum(bool(on.former_home(f"{kind}:{number}")) for number in range(60))
        job = FleetRebalance(structure, None, limit=1000, dry_run=True)
        assert job.backlog() == Backlog(moving, None, "keys at their former homes")
        # One walk over both former nodes; each page is counted once.
        chosen = iter([0.0] * 32 + [0.9] * 32)
        job = FleetRebalance(structure, None, limit=1000, dry_run=True, random=lambda: next(chosen))  # noqa: B023
        assert sum(job.perform(Slice(1000, 10.0)) for _ in range(64)) == moving
        with pytest.raises(ConfigurationError, match="would never come to an end"):
            job.parts(2)
    assert {name: contents(server) for name, server in servers.items()} == before


def test_a_backlog_that_lacks_a_node_is_not_exact(
    servers: dict[str, RedisServer], start_redis: Callable[..., RedisServer]
) -> None:
    other = start_redis()
    nodes = {**{name: servers[name].client() for name in OLD}, "d": other.client()}
    fill(Fleet(nodes))
    further = {**nodes, "c": servers["c"].client()}
    job = FleetRebalance(VolatileHashes(Fleet(further, previous=[*nodes]), "h"), None)
    whole = job.backlog(60.0)
    assert whole.exact
    assert whole.count > 0
    other.stop()
    found = job.backlog(60.0)
    assert not found.exact
    assert found.count < whole.count


@pytest.mark.parametrize("n", [1, 3, 100])
def test_a_sweep_carries_all(servers: dict[str, RedisServer], n: int) -> None:
    fill(fleet(servers, OLD))
    on = fleet(servers, NEW, previous=OLD)
    for structure in both(on):
        match = "plain:*" if structure.holds == "hash" else None
        job = FleetRebalance(structure, match)
        parts = pickle.loads(pickle.dumps(job.parts(n)))
        # Sixteen index shards a node, the tokens of theirs, and a walk by the pattern.
        assert len(parts) == min(n, 2 * (16 + 16 + (match is not None)))
        for part in parts:
            one = job.for_part(part)
            while not one.is_drained:
                with suppress(redis.TimeoutError):
                    one.perform(Slice(25, 10.0))
        assert job.backlog(60.0) == DONE
    check(fleet(servers, NEW), servers)


def test_a_node_that_leaves_gives_all_its_keys_away(servers: dict[str, RedisServer]) -> None:
    fill(fleet(servers, NEW))
    clients = {name: servers[name].client() for name in NEW}
    after = Fleet({name: clients[name] for name in OLD}, previous=clients)
    for structure in both(after):
        work_off(FleetRebalance(structure, match="[hk]:*"))
    check(fleet(servers, OLD), servers)


def test_a_new_home_that_is_left_alone_holds_up_its_own_keys_only(
    servers: dict[str, RedisServer],
) -> None:
    nodes = fleet(servers, NEW).nodes
    structure = VolatileHashes(Fleet(nodes), "h", backend="emulated")
    leaving = [name for name in (f"h:{n}" for n in range(300)) if structure.fleet.home(name) == "c"]
    for name in leaving:
        structure.hsetex(name, mapping={"f": 1}, ex=300)
    on = Fleet({name: nodes[name] for name in OLD}, previous=nodes)
    after = VolatileHashes(on, "h", backend="emulated")
    job = FleetRebalance(after, None, limit=2, random=lambda: 0.99)
    alone = frozenset({after.on_nodes["a"].job_client.identity})
    for _ in range(len(leaving)):
        slice = Slice(2, 10.0)
        slice.held_back = alone
        with suppress(redis.TimeoutError):
            job.perform(slice)
    still = {on.home(name) for name in leaving if servers["c"].client().exists(name)}
    # The keys whose new home is there have been carried, although the others stay before them.
    assert still == {"a"}
    assert job.backlog(60.0) != DONE
    work_off(FleetRebalance(after, None))


def test_native_fields_keep_their_deadlines(start_redis: Callable[..., RedisServer]) -> None:
    servers = {name: start_redis(8) for name in NEW}
    before = VolatileHashes(fleet(servers, OLD), "h", backend="native")
    for number in range(30):
        before.hsetex(f"h:{number}", mapping={"f": number, "g": number}, px=300_000 + number)
        before.hset(f"h:{number}", "plain", number)
    ends = {f"h:{n}": before.hpexpiretime(f"h:{n}", "f", "g", "plain") for n in range(30)}
    on = fleet(servers, NEW, previous=OLD)
    after = VolatileHashes(on, "h", backend="native")
    # One at its first use, the others by the job.
    first = next(name for name in ends if on.former_home(name))
    assert after.hpexpiretime(first, "f", "g", "plain") == ends[first]
    work_off(FleetRebalance(after, match="h:*"))
    for name, times in ends.items():
        assert after.hpexpiretime(name, "f", "g", "plain") == times
        assert after.hlen(name) == 3
        assert [n for n, each in servers.items() if each.client().exists(name)] == [on.home(name)]


def test_native_keys_without_a_pattern_are_not_taken_for_carried(
    start_redis: Callable[..., RedisServer],
) -> None:
    """No due index names them: the job found none, said 0 exactly, and the page said go on."""
    servers = {name: start_redis(8) for name in NEW}
    before = VolatileHashes(fleet(servers, OLD), "h", backend="native")
    for number in range(30):
        before.hsetex(f"h:{number}", mapping={"f": number}, ex=300)
    job = FleetRebalance(VolatileHashes(fleet(servers, NEW, previous=OLD), "h"), None)
    for call in (
        job.backlog,
        lambda: job.perform(Slice(25, 10.0)),
        lambda: job.parts(2),
    ):
        with pytest.raises(ConfigurationError, match=r"'h' is native.*give match="):
            call()
    # Without former nodes nothing is looked for, so no pattern is needed.
    assert FleetRebalance(VolatileHashes(fleet(servers, NEW), "h"), None).backlog(60.0).exact


def test_a_walk_goes_on_though_the_namespace_has_become_native(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Its place was in an index that a native namespace has not: an IndexError in each slice."""
    servers = {name: start_redis(8) for name in NEW}
    before = VolatileHashes(fleet(servers, OLD), "h", backend="emulated")
    before.hsetex("h:0", mapping={"f": 0}, ex=300)
    on = fleet(servers, NEW, previous=OLD)
    # After ten seconds a process reads the layout again.
    clock = ManualClock()
    job = FleetRebalance(VolatileHashes(on, "h"), match="h:*", clock=clock)
    for _ in range(600):
        job.perform(Slice(1, 10.0))
        if {place.number > 17 for place in job._places.values()} == {True}:
            break
    for name in NEW:
        migrating = MigrateToNative(VolatileHashes(servers[name].client(), "h"))
        for _ in range(200):
            migrating.perform(Slice(25, 10.0))
    for number in range(1, 30):
        VolatileHashes(fleet(servers, OLD), "h").hsetex(f"h:{number}", mapping={"f": 1}, ex=300)
    clock.advance(11)
    assert work_off(job) == sum(bool(on.former_home(f"h:{number}")) for number in range(1, 30))


async def test_a_key_is_carried_at_its_first_awaited_use(servers: dict[str, RedisServer]) -> None:
    fill(fleet(servers, OLD))
    nodes = {name: server.async_client() for name, server in servers.items()}
    on = AsyncFleet(nodes, previous=OLD)
    hashes, keys = AsyncVolatileHashes(on, "h", backend="emulated"), AsyncDurableKeys(on, "k")
    for number in range(60):
        assert await hashes.hmget(f"h:{number}", "f") == [str(number).encode()]
        assert await keys.get(f"k:{number}") == str(number).encode()
    check(fleet(servers, NEW), servers)
    for each in nodes.values():
        await each.aclose()


def test_the_code_of_the_page_runs(
    servers: dict[str, RedisServer], start_redis: Callable[..., RedisServer]
) -> None:
    urls = [*(server.url for server in servers.values()), start_redis().url]
    here = {f"redis://10.0.0.{number}": url for number, url in enumerate(urls, 1)}
    page = running("docs/fleets.md", replace=here)
    scope = page.run()
    items = scope["items"]
    assert items.hget("item:17", "likes") == b"42"
    for number in range(100):
        items.hsetex(f"item:{number}", mapping={"likes": number}, ex=300)
    assert items.httl("item:17", "likes")[0] > 200
    page.run()
    (job,) = scope["recruiter"].jobs().values()
    assert job.backlog().count > 0
    work_off(job)
    every = [b"%d" % number for number in range(100)]
    assert [scope["items"].hget(f"item:{n}", "likes") for n in range(100)] == every
    with page:
        page.run()
    assert scope["rebalance"].backlog().count > 0
    work_off(scope["rebalance"])
    assert [scope["items"].hget(f"item:{n}", "likes") for n in range(100)] == every
    # What the page says is left on the node that may be switched off then.
    left = servers["c"].client().keys("*")
    assert left
    assert all(b"ws:items:layout" in name or b"ws:items:mark" in name for name in left), left


def test_a_key_is_carried_at_its_first_use(servers: dict[str, RedisServer]) -> None:
    fill(fleet(servers, OLD))
    after = fleet(servers, NEW, previous=OLD)
    hashes, keys = both(after)
    for number in range(60):
        assert hashes.hset(f"h:{number}", "f", number) == 0
        hashes.hexpire(f"h:{number}", 300, "f")
        assert keys.expire(f"k:{number}", 300)
    check(after, servers)
    with both(after)[0].pipeline() as pipe:
        for number in range(60):
            pipe.hget(f"plain:{number}", "f")
        assert pipe.execute() == [str(number).encode() for number in range(60)]


@pytest.mark.parametrize("change", ["delete", "overwrite", "nothing"])
@pytest.mark.parametrize("kind", ["h", "k"])
def test_a_carrier_that_comes_late_changes_nothing(
    servers: dict[str, RedisServer], kind: str, change: str
) -> None:
    """Every step of a slow carrier, with a quick one and a user's write in between."""
    after = fleet(servers, NEW, previous=OLD)
    name = moving(after, kind)
    for pause in range(4):
        for each in servers.values():
            each.wipe()
        slow: Any = both(fleet(servers, NEW, previous=OLD))[kind == "k"]
        quick: Any = both(fleet(servers, NEW, previous=OLD))[kind == "k"]
        first: Any = both(fleet(servers, OLD))[kind == "k"]
        if kind == "h":
            first.hset(name, mapping={"f": "old", "gone": "old"})
        else:
            first.set(name, "old")
        old = slow.every_node[after.former_home(name)]
        new = slow.on_nodes[after.home(name)]
        steps = carry(old, new, name, (old.open(), new.open()))
        step, done = next(steps), False
        for at in range(4):
            if at == pause:
                if kind == "h":
                    assert quick.hget(name, "f") == b"old"
                    quick.hdel(name, "gone")
                    if change == "delete":
                        quick.delete(name)
                    elif change == "overwrite":
                        quick.hset(name, "f", "new")
                else:
                    assert quick.get(name) == b"old"
                    if change == "delete":
                        quick.delete(name)
                    elif change == "overwrite":
                        quick.set(name, "new")
            if not done:
                try:
                    step = steps.send(run(step[0].client, step[1]))
                except StopIteration:
                    done = True
        assert done
        expected = {"delete": None, "overwrite": b"new", "nothing": b"old"}[change]
        for user in (slow, quick, both(fleet(servers, NEW))[kind == "k"]):
            if kind == "h":
                assert user.hget(name, "f") == expected
                assert user.hget(name, "gone") is None
            else:
                assert user.get(name) == expected
        assert not servers[after.former_home(name) or ""].client().exists(name)


@pytest.mark.slow
def test_readers_see_each_value_at_all_times(servers: dict[str, RedisServer]) -> None:
    fill(fleet(servers, OLD), 100)
    after = fleet(servers, NEW, previous=OLD)
    missed: list[str] = []
    rounds = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            # Another fleet each time: a process that remembers nothing of the move.
            hashes, keys = both(fleet(servers, NEW, previous=OLD))
            for number in range(100):
                if hashes.hget(f"h:{number}", "f") != str(number).encode():
                    missed.append(f"h:{number}")
                if keys.get(f"k:{number}") != str(number).encode():
                    missed.append(f"k:{number}")
            rounds.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for structure in both(after):
            work_off(FleetRebalance(structure, None, limit=3))
    finally:
        while not rounds and thread.is_alive():
            stop.wait(0.01)
        stop.set()
        thread.join()
    assert missed == []
    check(fleet(servers, NEW), servers, 100)


def test_what_cannot_be_carried_is_refused(servers: dict[str, RedisServer]) -> None:
    after = fleet(servers, NEW, previous=OLD)
    name = moving(after, "s")
    with pytest.raises(ConfigurationError, match="only volatile hashes and durable keys"):
        Ick(after, name)
    with pytest.raises(ConfigurationError, match="no node of the fleet any more"):
        fleet(servers, OLD, previous=NEW)
    with pytest.raises(ConfigurationError, match="on a Fleet"):
        FleetRebalance(VolatileHashes(servers["a"].client(), "h"), None)
    hashes = both(after)[0]
    name = moving(after, "h")
    hashes.every_node[after.former_home(name) or ""].open()
    new = hashes.on_nodes[after.home(name)]
    layout = new.open()
    servers["c"].client().set(new.names.carried(layout.shard_of(0)), "foreign")
    zero = "06S"
    with pytest.raises(redis.ResponseError, match="WSLAYOUT"):
        run(new.client, carry_in(new, zero.encode(), layout, (b"x", b"", b"", b"", b"1")))


def test_a_foreign_key_in_the_place_of_a_mark_is_a_layout_error(
    servers: dict[str, RedisServer],
) -> None:
    fill(fleet(servers, OLD), FEW)
    hashes, _ = both(fleet(servers, NEW, previous=OLD))
    new = hashes.on_nodes["c"]
    for shard in range(new.open().index_shards):
        servers["c"].client().set(new.names.carried(shard), "foreign")
    with pytest.raises(LayoutError, match=r"^the key .*:carried .*; nothing was changed$"):
        work_off(FleetRebalance(hashes, None))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["h", "k"])
@pytest.mark.parametrize("by", ["job", "user"])
def test_killed_at_every_command(servers: dict[str, RedisServer], kind: str, by: str) -> None:
    on = fleet(servers, NEW, previous=OLD)
    mine = [f"{kind}:{n}" for n in range(FEW) if on.former_home(f"{kind}:{n}") == "a"]
    with (
        FaultyServer(servers["a"].port) as a,
        FaultyServer(servers["b"].port) as b,
        FaultyServer(servers["c"].port) as c,
    ):
        relays = {"a": a, "b": b, "c": c}
        urls = {n: f"redis://127.0.0.1:{each.port}/0" for n, each in relays.items()}

        def prepare() -> None:
            for each in servers.values():
                each.wipe()
            fill(fleet(servers, OLD), FEW)

        def work() -> None:
            structure: Any = both(Fleet(urls, previous=OLD, protocol=2))[kind == "k"]
            if by == "user":
                assert structure.exists(mine[0]) == 1
                return
            job = FleetRebalance(structure, None, random=lambda: 0.0)
            job._places["a"] = (key_slot(mine[0].encode()) % 16, b"0")
            # A busy machine may be slower than a job waits: the next recruit goes on.
            for _ in range(100):
                with suppress(redis.TimeoutError):
                    job.perform(Slice(25, 10.0))
                    return

        deaths = 0
        for _ in every_death([a, b, c], work, prepare):
            deaths += 1
            after = fleet(servers, NEW, previous=OLD)
            hashes, keys = both(after)
            # Half of the keys by their users, the rest by the next recruits.
            for number in range(0, FEW, 2):
                assert hashes.hget(f"h:{number}", "f") == str(number).encode()
                assert keys.get(f"k:{number}") == str(number).encode()
            for structure in (hashes, keys):
                work_off(FleetRebalance(structure, None))
            check(fleet(servers, NEW), servers, FEW)
        assert deaths >= 6
