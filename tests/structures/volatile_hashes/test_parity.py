"""Emulated hashes answer as Redis 8's own commands do, reply for reply, except where one list says.

A Hypothesis machine runs the same random commands on both: support/hash_parity.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.hash_model import ModelHashes
from support.hash_parity import (
    Awaited,
    AwaitedParity,
    ClusterParity,
    DecodedParity,
    NativeAwaitedParity,
    NativeClusterParity,
    NativeParity,
    Parity,
    PipelinedParity,
)
from support.parity import run_machine
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer, ServerMissingError, find_server
from workstealing.structures import AsyncVolatileHashes, VolatileHashes


def _run(native: Any, emulated: VolatileHashes, *, sweeps: bool = True) -> None:
    run_machine(Parity, 4, native=native, ours=emulated, sweeps=sweeps)


# A server collects expired fields within milliseconds by these.
QUICK = {"hz": 500, "active_expire_effort": 10, "enable_debug_command": "yes"}


@pytest.fixture(scope="module")
def quick_redis8() -> Iterator[RedisServer | None]:
    """A Redis 8 that collects expired fields within milliseconds; None where none can be had."""
    try:
        binary = find_server("redis", 8)
    except ServerMissingError:
        yield None
        return
    with RedisServer(binary, 8, name="quick redis8", **QUICK) as server:
        yield server


@pytest.fixture
def native(quick_redis8: RedisServer | None) -> Any:
    if quick_redis8 is None:
        return ModelHashes()
    return quick_redis8.client(db=1)


def test_redis7_emulates_what_redis8_does(native: Any, redis7: RedisServer) -> None:
    _run(native, VolatileHashes(redis7.client(), "parity", backend="emulated"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["redis62", "redis82", "valkey8", "valkey9"])
def test_further_servers_emulate_what_redis8_does(
    native: Any, kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(kind)
    _run(native, VolatileHashes(server.client(), "parity", backend="emulated"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "version"), [("redis", 8), ("redis", "8.2"), ("valkey", "9.1")], ids=str
)
def test_a_native_namespace_of_other_servers_does_what_redis8_does(
    start_redis: Callable[..., RedisServer], product: str, version: str
) -> None:
    native, server = start_redis(8, **QUICK), start_redis(version, product, **QUICK)
    ours = VolatileHashes(server.client(), "parity", backend="native")
    run_machine(NativeParity, 4, native=native.client(), ours=ours)


@pytest.mark.slow
def test_protocol_3_is_emulated(
    start_redis: Callable[..., RedisServer], redis7: RedisServer
) -> None:
    native = start_redis(8, **QUICK).client(protocol=3)
    _run(native, VolatileHashes(redis7.client(protocol=3), "parity", backend="emulated"))


@pytest.mark.slow
def test_redis8_emulates_what_it_does_itself_with_garbage_left_lying(
    native: Any, quick_redis8: RedisServer | None, redis7: RedisServer
) -> None:
    if quick_redis8 is None:
        _run(native, VolatileHashes(redis7.client(), "parity", backend="emulated"))
        return
    control = quick_redis8.client()
    control.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    try:
        hashes = VolatileHashes(quick_redis8.client(), "parity", backend="emulated")
        _run(native, hashes, sweeps=False)
    finally:
        control.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", "1")


@pytest.mark.slow
def test_the_model_that_stands_in_for_redis8_is_right(redis7: RedisServer) -> None:
    _run(ModelHashes(), VolatileHashes(redis7.client(), "parity", backend="emulated"))


@pytest.mark.slow
def test_pipelines_answer_alike(
    start_redis: Callable[..., RedisServer], redis7: RedisServer
) -> None:
    native = start_redis(8, **QUICK).client()
    ours = VolatileHashes(redis7.client(), "parity", backend="emulated")
    run_machine(PipelinedParity, 4, native=native, ours=ours)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 3])
def test_clients_that_decode_are_answered_alike(
    start_redis: Callable[..., RedisServer], redis7: RedisServer, protocol: int
) -> None:
    server = start_redis(8, **QUICK)
    settings: dict[str, Any] = {
        "protocol": protocol,
        "decode_responses": True,
        "encoding_errors": "surrogateescape",
    }
    decoding = VolatileHashes(redis7.client(**settings), "parity", backend="emulated")
    run_machine(
        DecodedParity,
        4,
        native=server.client(),
        ours=VolatileHashes(redis7.client(), "parity", backend="emulated"),
        decoding=(server.client(**settings), decoding),
    )


@pytest.fixture(scope="module")
def quick_cluster8(shared_redis8: RedisServer) -> Iterator[RedisCluster3]:
    """A Redis 8 cluster that collects expired fields within milliseconds."""
    with RedisCluster3(shared_redis8.binary, 8, name="quick cluster8", **QUICK) as server:
        yield server


CLUSTERS = {
    "cluster_redis62": ("redis62", "emulated"),
    "cluster_redis7": ("redis7", "emulated"),
    "cluster_valkey8": ("valkey8", "emulated"),
    "cluster_redis8": ("redis8", "native"),
    "cluster_redis82": ("redis82", "native"),
    "cluster_valkey9": ("valkey9", "native"),
}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("is_async", [False, True], ids=["blocking", "asyncio"])
@pytest.mark.parametrize("kind", CLUSTERS)
def test_clusters_answer_alike(
    quick_cluster8: RedisCluster3, kind: str, is_async: bool, request: pytest.FixtureRequest
) -> None:
    kept_by, backend = CLUSTERS[kind]
    server = request.getfixturevalue(kept_by)
    version = ".".join(map(str, server.version[:2]))
    is_native = backend == "native"
    settings = QUICK if is_native else {}
    with RedisCluster3(server.binary, version, name=kind, **settings) as cluster:
        sides = {
            "native": quick_cluster8.client(),
            "ours": VolatileHashes(cluster.client(), "parity", backend=backend),
        }
        if not is_async:
            run_machine(NativeClusterParity if is_native else ClusterParity, 8, **sides)
            return
        with asyncio.Runner() as runner:
            client = cluster.async_client()
            waited = AsyncVolatileHashes(client, "parity", backend=backend)
            machine = NativeAwaitedParity if is_native else AwaitedParity
            try:
                run_machine(machine, 8, **sides, awaited=Awaited(waited, runner))
            finally:
                runner.run(client.aclose())
