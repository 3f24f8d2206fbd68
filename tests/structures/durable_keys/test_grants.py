"""A lease whose holder is interrupted, or whose reply is lost, is held by nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis import asyncio as redis_asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.any_server import AnyServer
from support.delaying_relay import DelayingRelay
from support.faulty_server import FaultyServer
from support.grants import (
    eventually,
    every_async_cut,
    every_cancel,
    every_cut,
    every_opcode,
    greenlets_killed,
    signals_at_random_moments,
)
from support.interruptions import Interruption, alarms
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.jobs import KeyExpiry
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncDurableKeys, DurableKeys
from workstealing.structures.durable_keys import Lease

MINUTE_MS = 60_000
ASKS = ["acquire", "pipeline", "lock"]


@pytest.fixture
def keys(any_server: AnyServer) -> DurableKeys:
    made: DurableKeys = DurableKeys(any_server.client(), "grants")
    return made


def later(keys: DurableKeys, ms: int) -> DurableKeys:
    made: DurableKeys = DurableKeys(keys.client, "grants", clock_shift_ms=ms)
    return made


def held(client: redis.Redis) -> list[bytes]:
    """Return what is left of leases, beside the nonces that were withdrawn."""
    for_good = (b":mark", b":fence", b":layout", b":slots", b":due")
    return [
        key
        for key in client.scan_iter(count=1000)
        if not key.endswith(for_good) and b":withdrawn:" not in key
    ]


def warm(client: redis.Redis) -> None:
    """Let the server know the scripts, and the namespace its layout."""
    keys: DurableKeys = DurableKeys(client, "grants")
    with keys.lock("warm", 1) as lease:
        lease.extend()
    keys.release("warm", nonce="n")


@pytest.mark.contract
class TestNonces:
    def test_the_same_nonce_is_answered_by_the_same_grant(self, keys: DurableKeys) -> None:
        token = keys.acquire("lease", 10, nonce="mine")
        assert token
        assert keys.acquire("lease", 99, nonce=b"mine") == token
        assert keys.ttl("lease") <= 10
        assert keys.acquire("lease", 10, nonce="another") is None
        assert keys.acquire("lease", 10) is None
        assert keys.extend("lease", token, 100)
        assert later(keys, 50_000).acquire("lease", 10, nonce="mine") == token
        assert keys.release("lease", token)
        assert held(keys.client) == []

    def test_a_nonce_alone_releases(self, keys: DurableKeys) -> None:
        token = keys.acquire("lease", 10, nonce="mine")
        assert token
        assert keys.release("lease", nonce="another") is False
        assert keys.get("lease") == str(token).encode()
        assert keys.release("lease", nonce="mine") is True
        assert held(keys.client) == []
        assert keys.release("lease", nonce="mine") is False
        successor = keys.acquire("lease", 10, nonce="successor")
        assert successor
        assert successor > token
        assert keys.release("lease", nonce="mine") is False
        assert keys.acquire("lease", 10, nonce="successor") == successor

    def test_a_call_that_comes_after_its_release_is_granted_nothing(
        self, keys: DurableKeys
    ) -> None:
        assert keys.release("lease", nonce="late") is False
        assert keys.acquire("lease", 10, nonce="late") is None
        assert keys.exists("lease") == 0
        assert keys.acquire("other", 10, nonce="late")
        assert later(keys, MINUTE_MS + 1000).acquire("lease", 10, nonce="late")

    def test_a_lease_of_an_earlier_release_is_not_taken_for_a_grant(
        self, keys: DurableKeys
    ) -> None:
        token = keys.acquire("lease", 10, nonce="mine")
        assert token
        # It deletes a lease without the grant beside it, and grants without one.
        keys.delete("lease")
        keys.set("lease", token + 5, ex=10)
        assert keys.acquire("lease", 10, nonce="mine") is None
        assert keys.release("lease", nonce="mine") is False
        assert keys.extend("lease", token + 5, 20)
        assert keys.release("lease", token + 5)
        assert held(keys.client) == []

    def test_the_value_of_a_lease_is_its_token_still(self, keys: DurableKeys) -> None:
        token = keys.acquire("lease", 10, nonce="mine")
        assert keys.client.get("lease") == str(token).encode()

    def test_no_fencing_number_goes_back(self, keys: DurableKeys) -> None:
        """Whatever ended the lease before, and whoever asks, by whichever nonce."""
        last = 0
        ends: list[Callable[[int], Any]] = [
            lambda token: keys.release("lease", token),
            lambda _: keys.release("lease", nonce="mine"),
            lambda _: keys.delete("lease"),
            lambda _: (keys.set("lease", "another"), keys.delete("lease")),
            lambda token: (keys.extend("lease", token, 60), keys.release("lease", token)),
            lambda _: keys.client.delete("lease"),
        ]
        for turn in range(3 * len(ends)):
            nonce = "mine" if turn % len(ends) == 1 else None
            shifted = later(keys, turn * 2 * MINUTE_MS)
            token = shifted.acquire("lease", 30, nonce=nonce)
            assert token
            assert shifted.acquire("lease", 30) is None
            assert token > last
            last = token
            ends[turn % len(ends)](token)

    def test_all_is_collected(self, keys: DurableKeys) -> None:
        keys.acquire("lease", 10, nonce="mine")
        keys.release("other", nonce="late")
        hour = later(keys, 60 * MINUTE_MS)
        assert KeyExpiry(hour).backlog().count == 3
        assert hour.acquire("lease", 1, nonce="mine")
        assert hour.release("lease", nonce="mine")

    def test_something_foreign_in_the_place_of_a_grant(self, keys: DurableKeys) -> None:
        own = keys.names.grant(b"lease")
        keys.client.rpush(own, 1)
        token = keys.client.time()[0] * 1_000_000
        for call in (
            lambda: keys.acquire("lease", 5),
            lambda: keys.release("lease", nonce="n"),
        ):
            with pytest.raises(LayoutError, match="does not hold the grant of a lease"):
                call()
        assert keys.exists("lease") == 0
        assert keys.release("lease", token) is False

    def test_a_grant_lies_in_the_slot_of_its_lease(self, keys: DurableKeys) -> None:
        for name in (b"lease", b"{a}b", b"x}{y}:ws:"):
            assert key_slot(keys.names.grant(name)) == key_slot(name)
            assert key_slot(keys.names.withdrawn(name, b"{n}")) == key_slot(name)


@pytest.mark.parametrize("nonce", ["", b"", "x" * 65, 7, True, "é" * 33])
def test_what_is_no_nonce(nonce: Any) -> None:
    keys: DurableKeys = DurableKeys(redis.Redis())
    for call in (keys.acquire, keys.release):
        with pytest.raises(ConfigurationError, match=r"the nonce .* is not usable"):
            call("lease", **({"lease": 5} if call == keys.acquire else {}), nonce=nonce)
    with pytest.raises(ConfigurationError, match="give one of the two"):
        keys.release("lease", 5, nonce="n")
    with pytest.raises(ConfigurationError, match="give the int that acquire returned"):
        keys.release("lease")


@pytest.fixture
def door(redis7: RedisServer) -> Iterator[FaultyServer]:
    with FaultyServer(redis7.port) as door:
        yield door


def take(keys: DurableKeys, how: str) -> Any:
    if how == "acquire":
        return keys.acquire("lease", 30)
    if how == "pipeline":
        return keys.pipeline().acquire("lease", 30).execute()[0]
    with keys.lock("lease", 30) as lease:
        return lease.token


async def take_async(keys: AsyncDurableKeys, how: str) -> Any:
    if how == "acquire":
        return await keys.acquire("lease", 30)
    if how == "pipeline":
        return (await keys.pipeline().acquire("lease", 30).execute())[0]
    async with keys.lock("lease", 30) as lease:
        return lease.token


@pytest.mark.real
class TestCutReplies:
    """redis-py sends a command again whose reply was lost."""

    @pytest.mark.parametrize("how", ASKS)
    def test_a_free_lease_is_taken_all_the_same(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        direct = redis7.client()
        warm(direct)
        tokens = []
        for token in every_cut(door, lambda client: take(DurableKeys(client, "grants"), how)):
            assert token, door.names()
            tokens.append(token)
            if how != "lock":
                assert direct.get("lease") == str(token).encode()
                assert DurableKeys(direct, "grants").release("lease", token)
            assert held(direct) == [], door.names()
        assert len(tokens) > 5
        assert tokens == sorted(set(tokens))

    @pytest.mark.parametrize("by", ["token", "nonce"])
    def test_a_release_says_nothing_that_nobody_knows(
        self, redis7: RedisServer, door: FaultyServer, by: str
    ) -> None:
        direct = redis7.client()
        warm(direct)
        keys: DurableKeys = DurableKeys(redis.Redis(port=door.port, protocol=2), "grants")
        token = keys.acquire("lease", 30, nonce="n")
        door.fail(len(door.seen) + 1, "cut")
        with pytest.raises(redis.ConnectionError, match="not known"):
            keys.release("lease", token) if by == "token" else keys.release("lease", nonce="n")
        assert held(direct) == []

    def test_a_block_whose_release_was_cut_off_ends_well(
        self, redis7: RedisServer, door: FaultyServer
    ) -> None:
        """Nobody knows then whether the lease was kept, but it is not held any more."""
        direct = redis7.client()
        warm(direct)
        keys: DurableKeys = DurableKeys(redis.Redis(port=door.port, protocol=2), "grants")
        with keys.lock("lease", 30) as lease:
            door.fail(len(door.seen) + 1, "cut")
        assert lease.kept is None
        assert held(direct) == []
        with keys.lock("lease", 30) as again:
            assert again.token
        assert again.kept is True

    @pytest.mark.parametrize("how", ASKS)
    async def test_on_an_asyncio_client(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        direct = redis7.client()
        warm(direct)
        count = 0
        async for token in every_async_cut(
            door, lambda client: take_async(AsyncDurableKeys(client, "grants"), how)
        ):
            assert token, door.names()
            assert how == "lock" or DurableKeys(direct, "grants").release("lease", token)
            assert held(direct) == [], door.names()
            count += 1
        assert count > 5

    @pytest.mark.parametrize("how", ASKS)
    def test_without_retries_the_lease_is_given_back(
        self, redis7: RedisServer, door: FaultyServer, how: str
    ) -> None:
        direct = redis7.client()
        warm(direct)
        failed = 0
        for token in every_cut(
            door, lambda client: take(DurableKeys(client, "grants"), how), retries=False
        ):
            if isinstance(token, redis.ConnectionError):
                failed += 1
            elif how != "lock":
                assert DurableKeys(direct, "grants").release("lease", token)
            assert held(direct) == [], door.names()
        assert failed > 3

    def test_after_a_time_out_nobody_waits_again(
        self, redis7: RedisServer, door: FaultyServer
    ) -> None:
        warm(redis7.client())
        client = redis.Redis(
            port=door.port, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=0.2
        )
        keys: DurableKeys = DurableKeys(client, "grants")
        keys.open()
        door.fail(len(door.seen) + 1, "silent")
        with pytest.raises(redis.TimeoutError):
            keys.acquire("lease", 30, nonce="n")
        assert door.connections == 1


async def hold(keys: AsyncDurableKeys, how: str) -> None:
    if how == "lock":
        async with keys.lock("lease", 30):
            pass
    else:
        token = await take_async(keys, how)
        await asyncio.shield(keys.release("lease", token))


@pytest.mark.real
class TestCancelled:
    @pytest.mark.parametrize("how", ASKS)
    async def test_at_every_await(self, redis7: RedisServer, how: str) -> None:
        direct = redis7.client()
        warm(direct)
        await every_cancel(
            redis7,
            lambda client: hold(AsyncDurableKeys(client, "grants"), how),
            lambda: held(direct) == [],
            least=5,
        )

    async def test_while_the_request_is_under_way(self, redis7: RedisServer) -> None:
        direct = redis7.client()
        warm(direct)
        with DelayingRelay(redis7.port) as relay:
            async with redis_asyncio.Redis(port=relay.port) as client:
                keys: AsyncDurableKeys = AsyncDurableKeys(client, "grants")
                await keys.get("warm")
                for seconds in (0.02, 0.06, 0.12, 0.18):
                    relay.seconds = 0.1
                    task = asyncio.ensure_future(hold(keys, "lock"))
                    await asyncio.sleep(seconds)
                    task.cancel()
                    await asyncio.wait({task})
                    await eventually_free(direct)

    async def test_a_coroutine_that_is_closed(self, redis7: RedisServer) -> None:
        direct = redis7.client()
        warm(direct)
        async with redis_asyncio.Redis(port=redis7.port) as client:
            keys: AsyncDurableKeys = AsyncDurableKeys(client, "grants")
            await keys.get("warm")
            taking = keys.acquire("lease", 30)
            taking.send(None)
            taking.close()
            await eventually_free(direct)


async def eventually_free(direct: redis.Redis) -> None:
    await eventually(lambda: held(direct) == [], "the lease to be free")


@pytest.mark.real
class TestInterrupted:
    @pytest.mark.slow
    @pytest.mark.parametrize("how", ASKS)
    def test_at_every_opcode(self, redis7: RedisServer, how: str) -> None:
        direct = redis7.client()
        warm(direct)
        keys: DurableKeys = DurableKeys(redis7.client(), "grants")

        def call() -> None:
            token = take(keys, how)
            if how != "lock":
                direct.delete("lease", keys.names.grant(b"lease"))
                assert token

        # No `try` can begin before its function does: then the lease ends by itself.
        every_opcode(call, lambda: held(direct) == [], [(Lease.__exit__.__code__, 2)])

    @pytest.mark.slow
    def test_by_a_signal_at_any_moment(self, redis7: RedisServer) -> None:
        direct = redis7.client()
        warm(direct)
        landed = 0
        with DelayingRelay(redis7.port, 0.004) as relay, alarms() as alarm:
            for moment in range(60):
                client = redis.Redis(port=relay.port, protocol=2)
                keys: DurableKeys = DurableKeys(client, "grants")
                keys.open()
                try:
                    alarm(0.0002 * (moment + 1))
                    with keys.lock("lease", 30):
                        pass
                    alarm(0)
                except Interruption:
                    landed += 1
                wait_until(lambda: held(direct) == [], "the lease to be free")
                client.close()
        assert landed > 10


@pytest.mark.real
@pytest.mark.slow
class TestAtRandom:
    # Python itself drops what is raised in a finalizer, redis-py's among them.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_signals_at_random_moments(self, redis7: RedisServer) -> None:
        signals_at_random_moments(redis7, "durable keys")

    def test_greenlets_killed_at_random(self, redis7: RedisServer) -> None:
        greenlets_killed(redis7, "durable keys")
