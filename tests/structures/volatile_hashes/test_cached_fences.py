"""Nobody stores an older result, or holds others up: late requests, forks, clocks set back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from support.children import ended_well
from support.computing import leased_fields
from support.migrations import Migration
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.jobs import MigrateToNative
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import VolatileHashes
from workstealing.structures.volatile_hashes.surface import LEASE, STORE

LONG: dict[str, Any] = {"ttl": 600.0, "wait": 60.0, "lease": 600.0, "key": "row", "field": "f"}


def hashes_on(server: RedisServer, **options: Any) -> Any:
    return VolatileHashes(server.client(), namespace="cached", **options)


class TestLateRequests:
    """A request that a client has sent again may come once more, however late."""

    @pytest.mark.parametrize("backend", ["emulated", "native"])
    @pytest.mark.parametrize("by", ["a call", "refresh"])
    @pytest.mark.parametrize("then", ["invalidate", "delete", "refresh"])
    @pytest.mark.parametrize("late", ["before the store", "before the store comes again"])
    def test_a_lease_that_was_voided_comes_not_back(
        self, redis8: RedisServer, backend: str, by: str, then: str, late: str
    ) -> None:
        hashes, sent = hashes_on(redis8, backend=backend), []
        other = hashes.cached(**LONG)(lambda: "new")

        @hashes.cached(**LONG)
        def row() -> str:
            if late == "before the store":
                forget()
                hashes.execute_command(*sent[0])
            return "old"

        def forget() -> None:
            if then == "refresh":
                other.refresh()
            hashes.delete("row") if then == "delete" else other.invalidate()

        send = row._send

        def noting(turn: Any, request: Any) -> Any:
            if isinstance(request, tuple) and request[0] in (LEASE, STORE):
                sent.append(request)
            return send(turn, request)

        row._send = noting
        assert (row() if by == "a call" else row.refresh()) == "old"
        if late != "before the store":
            forget()
            for request in sent:
                hashes.execute_command(*request)
        assert [each[0] for each in sent] == [LEASE, STORE]
        assert hashes.hget("row", "f") is None
        if late == "before the store":
            assert not leased_fields(hashes, "row")


class TestForks:
    @pytest.mark.parametrize("how", ["ends", "returns", "raises"])
    def test_a_child_that_leaves_the_computation_does_not_end_its_parents_lease(
        self, redis7: RedisServer, how: str
    ) -> None:
        """It gave the lease back, so the parent's result was not kept; or it stored its own."""
        hashes, parent, children = hashes_on(redis7), os.getpid(), []

        @hashes.cached(**LONG)
        def row() -> str:
            child = os.fork()
            if child:
                children.append(child)
                ended_well(child)
                assert leased_fields(hashes, "row") == [b"f"]
                return "the parent's"
            if how == "ends":
                raise SystemExit
            if how == "raises":
                raise ValueError
            return "the child's"

        try:
            found = row()
        finally:
            if os.getpid() != parent:
                os._exit(0)
        assert found == "the parent's"
        assert len(children) == 1
        assert hashes.hget("row", "f").endswith(b"the parent's\"")


@pytest.mark.parametrize("backend", ["emulated", "native"])
def test_a_clock_that_is_set_back_lengthens_no_lease(redis8: RedisServer, backend: str) -> None:
    """A computer that was killed held others up for as long as the clock had been ahead."""
    ahead = hashes_on(redis8, backend=backend, clock_shift_ms=3_600_000)
    # A clock is set right by a little all the time.
    slightly = hashes_on(redis8, backend=backend, clock_shift_ms=3_599_900)
    back = hashes_on(redis8, backend=backend)

    def ask(hashes: Any, nonce: str) -> bool:
        asked = ("FIELDS", 1, "f", nonce, 30_000, 30_000, -1, "")
        return bool(hashes.execute_command(LEASE, "row", *asked)[0])

    assert ask(ahead, "killed")
    assert not ask(slightly, "another")
    assert ask(back, "another")
    # The lease that is out is the other one's.
    assert not back.execute_command(STORE, "row", "FIELDS", 1, "f", "killed", "", "", b"1", 1)


class TestMoves:
    """A hash that moves while its field is computed takes the lease, and its end, with it."""

    @pytest.mark.slow
    @pytest.mark.parametrize("moves", ["the keys", "the whole slot"])
    @pytest.mark.parametrize("is_voided", [False, True])
    def test_of_a_slot(self, cluster: RedisCluster3, moves: str, is_voided: bool) -> None:
        hashes: Any = VolatileHashes(cluster.client(), "cached", backend="emulated")
        migration = Migration(cluster, key_slot(b"row"))
        hashes.hsetex("row", mapping={"other": 1}, ex=600)

        def move() -> str:
            migration.begin()
            assert migration.move_keys() > 3
            if moves == "the whole slot":
                migration.end()
            if is_voided:
                assert not hashes.cached(**LONG)(lambda: None).invalidate()
            return "old"

        row = hashes.cached(**LONG)(move)
        try:
            assert row() == "old"
            assert (hashes.hget("row", "f") is None) is is_voided
            assert not leased_fields(hashes, "row")
        finally:
            migration.close()
            migration.undo()
            migration.close()

    @pytest.mark.parametrize("is_voided", [False, True])
    def test_of_a_namespace(self, redis8: RedisServer, is_voided: bool) -> None:
        hashes_on(redis8, backend="emulated").hsetex("row", mapping={"other": 1}, ex=600)
        hashes, other = hashes_on(redis8), hashes_on(redis8)
        assert hashes.open().is_emulated
        job = MigrateToNative(VolatileHashes(redis8.client(), "cached"))

        def move() -> str:
            for _ in range(1000):
                job.perform(Slice(25, 5.0))
                if redis8.client().hget("ws:cached:layout", "backend") == b"native":
                    break
            if is_voided:
                assert not other.cached(**LONG)(lambda: None).invalidate()
            return "old"

        assert hashes.cached(**LONG)(move)() == "old"
        assert other.open().is_native
        assert (other.hget("row", "f") is None) is is_voided
        assert not leased_fields(other, "row")


@pytest.mark.parametrize("lacks", ["the lease", "the invalidate()"])
def test_a_failover_loses_the_last_writes_and_nothing_else(
    start_redis: Callable[..., RedisServer], lacks: str
) -> None:
    primary, replica = start_redis(7, repl_diskless_sync_delay=0), start_redis(7)
    admin = replica.client()
    before, after = hashes_on(primary), hashes_on(replica)
    before.hset("row", "other", 1)
    admin.replicaof("127.0.0.1", primary.port)
    wait_until(lambda: admin.exists("row") == 1, "the replica to have what there is")

    def part() -> None:
        if lacks == "the invalidate()":
            wait_until(lambda: len(leased_fields(after, "row")) == 1, "the replica's lease")
        admin.replicaof("no", "one")

    def computes() -> str:
        if lacks == "the invalidate()":
            part()
        # On the server that fails.
        before.cached(**LONG)(lambda: None).invalidate()
        row._hashes = after
        return "old"

    if lacks == "the lease":
        part()
    row: Any = before.cached(**LONG)(computes)
    assert row() == "old"
    # An invalidate() that is lost has not been; a lease that is lost stores nothing.
    assert (after.hget("row", "f") is None) is (lacks == "the lease")
    assert not leased_fields(after, "row")
