"""Durable keys under real contention: one holder a lease, and no collector takes what is live."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from support.at_once import at_once
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer
from workstealing.jobs import KeyExpiry
from workstealing.recruiting import Slice
from workstealing.structures import DurableKeys

pytestmark = pytest.mark.real

NAMESPACE = "races"
AnyReal = RedisServer | RedisCluster3


@pytest.fixture(params=["redis7", "cluster"])
def server(request: pytest.FixtureRequest) -> Iterator[AnyReal]:
    found: AnyReal = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def keys_on(server: AnyReal, ahead_ms: int = 0) -> DurableKeys:
    keys: DurableKeys = DurableKeys(server.client(), NAMESPACE, clock_shift_ms=ahead_ms)
    return keys


def test_a_lease_has_one_holder_and_its_tokens_grow(server: AnyReal) -> None:
    rounds, workers = 150, 6
    inside: list[int] = []
    tokens: list[int] = []
    refused: list[int] = []

    def work() -> None:
        keys = keys_on(server)
        for _ in range(rounds):
            token = keys.acquire("lease", 60)
            if token is None:
                refused.append(1)
                continue
            inside.append(token)
            assert inside == [token], "two hold the lease"
            tokens.append(token)
            inside.remove(token)
            assert keys.release("lease", token)

    at_once([work] * workers)
    assert tokens == sorted(set(tokens))
    assert len(tokens) + len(refused) == rounds * workers
    assert refused, "nobody ever met another, so this proves nothing"


@pytest.mark.slow
def test_no_collector_takes_what_has_been_written_anew(server: AnyReal) -> None:
    """Keys pass their deadline and are written anew, all the while that recruits collect."""
    collected: list[int] = []
    written: list[int] = []
    done = threading.Event()
    writing = [3]

    def write(number: int) -> Callable[[], None]:
        def work() -> None:
            keys = keys_on(server)
            try:
                for i in range(200):
                    name = f"name:{number}:{i % 7}"
                    keys.set(name, "garbage", px=1)
                    options = {"ex": 100} if i % 2 else {"nx": True}
                    if keys.set(name, i, **options) is None:
                        # The millisecond had not passed yet.
                        assert "nx" in options
                        continue
                    written.append(i)
                    assert keys.expire(name, 50)
                    assert keys.get(name) == str(i).encode()
            finally:
                writing[0] -= 1
                if not writing[0]:
                    done.set()

        return work

    def collect() -> None:
        job = KeyExpiry(keys_on(server))
        while not done.is_set():
            collected.append(job.perform(Slice(25, 10.0)))

    at_once([*(write(number) for number in range(3)), collect, collect])
    assert len(collected) > 10
    assert len(written) >= 300
