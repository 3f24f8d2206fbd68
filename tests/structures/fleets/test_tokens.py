"""The fencing tokens of leases on a fleet that gets a further node: none goes back."""

from __future__ import annotations

from typing import Any

import pytest

from support.fleet_moves import DONE, NEW, OLD, both, fleet, moving, work_off
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing import Fleet
from workstealing.errors import LayoutError
from workstealing.jobs import FleetRebalance
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import (
    DurableKeys,
)

pytestmark = pytest.mark.real


@pytest.mark.parametrize("node", ["former", "new"])
@pytest.mark.parametrize("by", ["its first use", "the job"])
def test_a_fence_of_another_type_is_a_layout_error(
    servers: dict[str, RedisServer], by: str, node: str
) -> None:
    before, after = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    name = moving(after, "k")
    assert DurableKeys(before, "k").acquire(name, 30)
    keys = DurableKeys(after, "k")
    where = after.former_home(name) if node == "former" else after.home(name)
    shard = key_slot(name.encode()) % 16
    fence = keys.every_node[where or ""].names.fence(shard)
    servers[where or ""].client().delete(fence)
    servers[where or ""].client().hset(fence, "foreign", 1)
    held = servers[where or ""].client().dump(fence)
    job = FleetRebalance(keys, None)
    work = {"the job": lambda: work_off(job), "its first use": lambda: keys.acquire(name, 30)}[by]
    with pytest.raises(LayoutError, match=r"^the key .*fence.* does not hold a fencing token"):
        work()
    assert servers[where or ""].client().dump(fence) == held


def test_fencing_tokens_grow_although_the_new_home_s_clock_is_behind(
    servers: dict[str, RedisServer],
) -> None:
    before, after = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    name = moving(after, "k")
    ahead = DurableKeys(before, "k", clock_shift_ms=3_600_000)
    token = ahead.acquire(name, lease=30)
    assert token is not None
    assert ahead.release(name, token)
    later = DurableKeys(after, "k").acquire(name, lease=30)
    assert later is not None
    assert later > token


def test_tokens_grow_on_where_nobody_held_a_lease_during_the_move(
    servers: dict[str, RedisServer],
) -> None:
    """There was no key to be carried, so no fence was raised, and the move was over."""
    before, after = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    name = moving(after, "k")
    ahead = DurableKeys(before, "k", clock_shift_ms=3_600_000)
    token = ahead.acquire(name, lease=30)
    assert token is not None
    assert ahead.release(name, token)
    job = FleetRebalance(DurableKeys(after, "k"), None)
    assert job.backlog(60.0).count == 1
    assert FleetRebalance(DurableKeys(after, "k"), None, dry_run=True).perform(Slice(25, 10.0)) == 0
    assert work_off(job) == 0
    # Its clock is behind, and it knows nothing of the former home.
    later = DurableKeys(fleet(servers, NEW), "k").acquire(name, lease=30)
    assert later is not None
    assert later > token


@pytest.mark.parametrize("stays", [True, False])
def test_tokens_grow_although_the_new_home_s_clock_is_set_back_after_the_move(
    servers: dict[str, RedisServer], stays: bool
) -> None:
    """The backlog went by the clock of a node that had left no token any more, and said 0."""
    clients = {name: servers[name].client() for name in NEW}
    new = NEW if stays else ("c",)
    after = Fleet({name: clients[name] for name in new}, previous={"a": clients["a"]})
    name = next(n for n in (f"k:{i}" for i in range(1000)) if after.home(n) == "c")
    token = DurableKeys(Fleet({"a": clients["a"]}), "k").acquire(name, lease=30)
    assert token is not None
    assert DurableKeys(Fleet({"a": clients["a"]}), "k").release(name, token)
    # Where the node stays the new home's clock decides, which is behind now.
    keys = DurableKeys(after, "k", clock_shift_ms=-3_600_000 if stays else 0)
    assert FleetRebalance(keys, None).backlog(60.0).count >= 1
    work_off(FleetRebalance(keys, None))
    over = Fleet({name: clients[name] for name in new})
    later = DurableKeys(over, "k", clock_shift_ms=-3_600_000).acquire(name, lease=30)
    assert later is not None
    assert later > token


def test_leases_of_keys_that_stay_are_no_backlog(servers: dict[str, RedisServer]) -> None:
    """Each is a later token than the new home's fence, and so the move was never over."""
    after = fleet(servers, NEW, previous=OLD)
    keys = DurableKeys(after, "k")
    stays = next(n for n in (f"k:{i}" for i in range(1000)) if after.home(n) == "a")
    assert keys.acquire(f"another at {stays}", 30)
    job = FleetRebalance(keys, None)
    work_off(job)
    for shift_ms in (0, 0, 3_600_000):
        its = DurableKeys(after, "k", clock_shift_ms=shift_ms)
        token = its.acquire(stays, 30)
        assert token
        assert its.release(stays, token)
        assert job.backlog(60.0) == DONE
        # One that has not raised the fences itself goes by the new home's clock.
        other = FleetRebalance(keys, None).backlog(60.0)
        assert other == DONE or (shift_ms and other.count == 1)


def test_a_token_of_a_process_that_runs_on_is_met_by_the_job(
    servers: dict[str, RedisServer],
) -> None:
    """The job had let the tokens grow on once, and was never done."""
    one, other = {"a": servers["a"].client()}, {"c": servers["c"].client()}
    keys = DurableKeys(Fleet(other, previous=one), "k")
    runs_on = DurableKeys(Fleet(one), "k", clock_shift_ms=3_600_000)
    first = runs_on.acquire("lock", 30)
    assert first
    assert runs_on.release("lock", first)
    job = FleetRebalance(keys, None)
    work_off(job)
    token = runs_on.acquire("lock", 30)
    assert token
    assert runs_on.release("lock", token)
    assert job.backlog(60.0).count == 1
    work_off(job)
    later = DurableKeys(Fleet(other), "k").acquire("lock", 30)
    assert later
    assert later > token


@pytest.mark.parametrize("kind", ["h", "k"])
@pytest.mark.parametrize("foreign", ["of another shard", "", b"\xff"])
def test_a_foreign_token_of_a_leaving_key_holds_up_no_move(
    servers: dict[str, RedisServer], kind: str, foreign: str | bytes
) -> None:
    """One in another shard's hash was met again and again: a sweep ran for ever."""
    before, after = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    structures: dict[str, Any] = dict(zip("hk", both(after), strict=True))
    name = moving(after, kind)
    hashes, keys = both(before)
    if kind == "h":
        hashes.hsetex(name, mapping={"f": 1}, ex=300)
    else:
        keys.set(name, 1, ex=300)
    node = after.former_home(name) or ""
    shard = key_slot(name.encode()) % 16
    leaving = structures[kind].every_node[node].names.leaving((shard + 1) % 16)
    servers[node].client().hset(leaving, name if foreign == "of another shard" else foreign, 123)
    job = FleetRebalance(structures[kind], None)
    for part in job.parts(3):
        one = job.for_part(part)
        for _ in range(200):
            if one.is_drained:
                break
            one.perform(Slice(25, 10.0))
        assert one.is_drained
    assert job.backlog(60.0) == DONE
    assert servers[after.home(name)].client().exists(name)
    # The end of the move takes it away.
    over = FleetRebalance(type(structures[kind])(fleet(servers, NEW), kind), None)
    for _ in range(100):
        over.perform(Slice(25, 10.0))
    assert over.backlog(60.0).count == 0
    assert not any(server.client().keys("*:leaving") for server in servers.values())


@pytest.mark.parametrize("by", ["its first use", "the job"])
def test_a_lease_is_carried_with_its_nonce(servers: dict[str, RedisServer], by: str) -> None:
    before, after = fleet(servers, OLD), fleet(servers, NEW, previous=OLD)
    name = moving(after, "k")
    token = DurableKeys(before, "k").acquire(name, 30, nonce="mine")
    assert token
    keys = DurableKeys(after, "k")
    if by == "the job":
        assert work_off(FleetRebalance(keys, None)) == 2
    assert keys.acquire(name, 30, nonce="mine") == token
    assert keys.release(name, nonce="mine") is True
    assert keys.exists(name) == 0
