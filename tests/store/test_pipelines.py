"""The pipelines of structures: each command once, results in their places, nothing kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import ExecAbortError, NoPermissionError, NoScriptError, ResponseError

from support.servers import RedisServer
from workstealing.errors import ConfigurationError, LayoutError
from workstealing.store.connection import checked
from workstealing.store.operations import Operation, Steps, command, drive
from workstealing.store.scripts import load
from workstealing.structures.durable_keys import AsyncDurableKeys, DurableKeys
from workstealing.structures.ick import AsyncIck, Ick
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes


def _fill_ick(pipeline: Any) -> Any:
    return pipeline.add({"a": 1}).incr("visits")


def _fill_keys(pipeline: Any) -> Any:
    pipeline.set("a", "1")
    return pipeline.plain.incr("visits")


def _fill_hashes(pipeline: Any) -> Any:
    pipeline.hset("a", "b", "1")
    return pipeline.incr("visits")


MAKERS = pytest.mark.parametrize(
    ("make", "fill"),
    [
        (lambda client: AsyncIck(client, "list"), _fill_ick),
        (lambda client: AsyncDurableKeys(client, namespace="n"), _fill_keys),
        (lambda client: AsyncVolatileHashes(client, namespace="n"), _fill_hashes),
    ],
    ids=["ick", "keys", "hashes"],
)


async def _at_the_same_time(server: RedisServer, make: Any, fill: Any) -> None:
    client = server.async_client()
    try:
        pipeline = make(client).pipeline()
        fill(pipeline)
        first, second = await asyncio.gather(pipeline.execute(), pipeline.execute())
        assert (len(first), second) == (2, [])
        assert first[1] == 1
        fill(pipeline)
        running = asyncio.ensure_future(pipeline.execute())
        await asyncio.sleep(0)
        fill(pipeline)
        assert (await running)[1] == 2
        assert len(pipeline) == 2
        assert (await pipeline.execute())[1] == 3
        assert len(pipeline) == 0
    finally:
        await client.aclose()


@MAKERS
def test_two_calls_of_execute_send_each_command_once(
    redis7: RedisServer, make: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    asyncio.run(_at_the_same_time(redis7, make, fill))


@MAKERS
def test_a_cancelled_execute_leaves_pipeline_and_client_usable(
    redis7: RedisServer, make: Callable[..., Any], fill: Callable[..., Any]
) -> None:
    async def run() -> None:
        client = redis7.async_client()
        try:
            pipeline = make(client).pipeline()
            fill(pipeline)
            running = asyncio.ensure_future(pipeline.execute())
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert len(pipeline) == 0
            before = int(await client.get("visits") or 0)
            fill(pipeline)
            assert (await pipeline.execute())[1] == before + 1
        finally:
            await client.aclose()

    asyncio.run(run())


def test_a_pipeline_and_its_errors_are_freed_without_the_garbage_collector(
    redis7: RedisServer,
) -> None:
    client = redis7.client()
    client.set("list", "no ick")
    ick = Ick(client, "list")

    def run() -> tuple[weakref.ref[Any], list[weakref.ref[Any]]]:
        pipeline = ick.pipeline()
        results = pipeline.add({"a": 1}).incr("n").reserve(1).execute(raise_on_error=False)
        assert [isinstance(each, Exception) for each in results] == [True, False, True]
        return weakref.ref(pipeline), [weakref.ref(results[0]), weakref.ref(results[2])]

    run()
    gc.collect()
    gc.disable()
    try:
        pipeline, errors = run()
        assert pipeline() is None
        assert [error() for error in errors] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("queue", ["hashes", "ick", "checked"])
def test_an_error_that_is_raised_is_freed_without_the_garbage_collector(
    redis7: RedisServer, queue: str
) -> None:
    client = redis7.client()
    client.set("list", "no ick")
    hashes = VolatileHashes(client, "freed", backend="emulated")
    hashes.open()

    def run() -> weakref.ref[Any]:
        try:
            if queue == "hashes":
                hashes.pipeline().hget("list", "f").incr("n").execute()
            elif queue == "ick":
                Ick(client, "list").pipeline().add({"a": 1}).incr("n").execute()
            else:
                checked([b"", ResponseError("no")])
        except Exception as error:  # noqa: BLE001 - each has another one
            return weakref.ref(error)
        raise AssertionError("nothing was raised")

    run()
    gc.collect()
    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


def test_results_and_errors_stand_in_their_places(redis7: RedisServer) -> None:
    client = redis7.client()
    client.set("text", "no list")
    ick = Ick(client, "list")
    ick.add({f"m{n}": n for n in range(2_500)})
    client.script_flush()
    # No step, one step, a list of steps, more steps than one, a refused command.
    pipeline = ick.pipeline(transaction=False)
    pipeline.stats().lpush("text", "x").reserve(2_200).add(
        {f"m{n}": n for n in range(1_200, 2_400)}
    )
    pipeline.ack().incr("visits")
    stats, refused, batch, added, acked, visits = pipeline.execute(raise_on_error=False)
    assert stats["total_size"] == 2_500
    assert isinstance(refused, ResponseError)
    assert [member for member, _ in batch] == [b"m%d" % n for n in range(2_200)]
    assert (tuple(added), acked, visits) == ((0, 0), 0, 1)
    pipeline.incr("visits").lpush("text", "x").incr("visits")
    with pytest.raises(ResponseError, match=r"^command 2 of the pipeline: WRONGTYPE"):
        pipeline.execute()
    assert client.get("visits") == b"3"
    assert pipeline.execute() == []


def test_a_layout_error_is_raised_and_the_commands_behind_it_have_run(redis7: RedisServer) -> None:
    client = redis7.client()
    client.set("list", "no ick")
    pipeline = Ick(client, "list").pipeline()
    pipeline.incr("visits").add({"a": 1}).incr("visits")
    with pytest.raises(LayoutError, match=r"^the key list says no ick .* nothing was changed$"):
        pipeline.execute()
    assert client.get("visits") == b"2"


def test_what_cannot_be_queued_sends_nothing_and_the_pipeline_stays_usable(
    redis7: RedisServer,
) -> None:
    client = redis7.client()
    pipeline = Ick(client, "list").pipeline()
    pipeline.incr("visits").hscan_iter("h")
    with pytest.raises(ConfigurationError, match=r"^hscan_iter queues no command"):
        pipeline.execute(raise_on_error=False)
    assert client.dbsize() == 0
    assert pipeline.incr("visits").execute() == [1]
    with pytest.raises(ConfigurationError):
        pipeline.incr("visits").add({"a": float("nan")})
    assert pipeline.execute() == [2]


def test_an_aborted_transaction_changes_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    pipeline = Ick(client, "list").pipeline().add({"a": 1})
    pipeline.execute_command("NOSUCHCOMMAND", "x")
    with pytest.raises((ExecAbortError, ResponseError)):
        pipeline.execute(raise_on_error=False)
    assert client.dbsize() == 0
    assert pipeline.add({"a": 1}).execute() == [(1, 0)]


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"protocol": 3}, {}])
def test_results_are_the_same_on_every_client(redis7: RedisServer, options: dict[str, Any]) -> None:
    client = redis.Redis(port=redis7.port, **options)
    with client:
        keys = DurableKeys(client, namespace="n")
        pipeline = Ick(client, "list").pipeline().add({"a": 1}).reserve(1).ack("a")
        added, [(member, score)], acked = pipeline.execute()
        assert (added, score, acked) == ((1, 0), 1.0, 0)
        assert member in ("a", b"a")
        pipeline = keys.pipeline()
        pipeline.set("k", "v")
        pipeline.get("k")
        assert pipeline.execute()[1] in ("v", b"v")


class TestAForgottenScript:
    """NOSCRIPT says that an operation has not run: it runs once, or is told; never twice."""

    @staticmethod
    def filled(pipeline: Any) -> Any:
        """Queue two counts of a field, and make the server forget the script in between."""
        return pipeline.hincrby("a", "n", 1).script_flush().hincrby("a", "n", 1)

    def test_in_the_middle_of_a_plain_pipeline(self, redis7: RedisServer) -> None:
        client = redis7.client()
        hashes = VolatileHashes(client, namespace="n", backend="emulated")
        assert self.filled(hashes.pipeline(transaction=False)).execute() == [1, True, 2]
        assert client.hgetall("a") == {b"n": b"2"}

    def test_in_the_middle_of_an_asynchronous_one(self, redis7: RedisServer) -> None:
        async def run() -> list[Any]:
            client = redis7.async_client()
            try:
                hashes = AsyncVolatileHashes(client, namespace="n", backend="emulated")
                executed: list[Any] = await self.filled(hashes.pipeline(False)).execute()
                return executed
            finally:
                await client.aclose()

        assert asyncio.run(run()) == [1, True, 2]
        assert redis7.client().hgetall("a") == {b"n": b"2"}

    def test_before_a_command_that_has_run(self, redis7: RedisServer) -> None:
        """To run it after that command would turn the order round."""
        client = redis7.client()
        hashes = VolatileHashes(client, namespace="n", backend="emulated")
        pipeline = self.filled(hashes.pipeline(transaction=False))
        pipeline.plain.hdel("a", "n").hincrby("a", "n", 5)
        first, _, forgotten, deleted, last = pipeline.execute(raise_on_error=False)
        assert isinstance(forgotten, NoScriptError)
        assert (first, deleted, last) == (1, 1, 5)
        assert client.hgetall("a") == {b"n": b"5"}

    def test_after_a_refused_command_that_carried_the_text(self, redis7: RedisServer) -> None:
        admin = redis7.client()
        admin.execute_command("ACL", "SETUSER", "poor", "on", ">x", "~[^b]*", "+@all")
        try:
            VolatileHashes(admin, namespace="n", backend="emulated").hincrby("a", "n", 1)
            admin.script_flush()
            client = redis7.client(username="poor", password="x")
            pipeline = VolatileHashes(client, namespace="n").pipeline(transaction=False)
            pipeline.hincrby("b", "n", 1).hincrby("a", "n", 1).hincrby("a", "n", 1)
            refused, *counted = pipeline.execute(raise_on_error=False)
            assert isinstance(refused, NoPermissionError)
            assert counted == [2, 3]
            assert admin.hgetall("a") == {b"n": b"3"}
        finally:
            admin.execute_command("ACL", "DELUSER", "poor")

    def test_in_a_list_of_operations_whose_order_does_not_matter(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.mset({"{k}a": "1", "{k}b": "2"})
        script = load("durable_keys/get")

        def steps() -> Steps[list[Any]]:
            first, second = (Operation(script, (key, "{k}due"), ()) for key in ("{k}a", "{k}b"))
            yielded: list[Any] = yield [
                *(first, command("SCRIPT", "FLUSH"), second, command("INCR", "visits"))
            ]
            return yielded

        assert drive(client, steps()) == [b"1", b"OK", b"2", 1]
        assert client.get("visits") == b"1"
