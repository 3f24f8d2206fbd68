"""Servers' own faults with fields that expire: each is shown on its servers, and avoided."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing import Recruiter
from workstealing.errors import ConfigurationError
from workstealing.jobs import HashFieldExpiry, MigrateToNative
from workstealing.recruiting.hooks import ANNOUNCEMENTS
from workstealing.recruiting.slice import Slice
from workstealing.store.keys import key_slot
from workstealing.structures import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.structure import WARNING
from workstealing.structures.volatile_hashes.commands import HashNames
from workstealing.structures.volatile_hashes.server_faults import (
    FAULTS,
    LAST_DEADLINE_MS,
    ServerFault,
    applying,
    reason_against,
    server_of,
)
from workstealing.structures.volatile_hashes.surface import (
    COUNT_EXISTING,
    MISTREATED_NAMES,
    MOVE_FIELD,
    STORE,
)

Start = Callable[..., RedisServer]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "volatile_hashes.md"
SERVERS: list[tuple[str, int | str]] = [("redis", 8), ("redis", "8.2"), ("valkey", "9.1")]
AOF = {"appendonly": "yes", "appendfsync": "always"}
PLAIN = {
    "redis_version": "8.2.3",
    "aof_enabled": "0",
    "role": "master",
    "connected_slaves": "0",
}


def a_pair(start: Start, product: str, version: int | str) -> tuple[Any, Any]:
    """Return clients of a primary and of its replica, neither of which collects fields."""
    config = {"enable_debug_command": "yes", "repl_diskless_sync_delay": 0}
    primary, replica = (start(version, product, **config) for _ in range(2))
    follower = replica.client()
    follower.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    wait_until(
        lambda: follower.info("replication")["master_link_status"] == "up", "the replica to follow"
    )
    client = primary.client()
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    return client, follower


def shows_aof_replay(start: Start, product: str, version: int | str) -> bool:
    """Persist a field, and restart behind its former deadline."""
    server = start(version, product, **AOF)
    client = server.client()

    def persist() -> bool:
        client.execute_command("HSETEX", "h", "PX", 1000, "FIELDS", 1, "f", "v")
        client.hset("h", "other", "v")
        return bool(client.execute_command("HPERSIST", "h", "FIELDS", 1, "f") == [1])

    # On a busy machine the second may have passed by then.
    wait_until(persist, "a field to be persisted")
    time.sleep(1.1)
    server.kill()
    server.restart()
    return server.client().hget("h", "f") is None


def shows_increment_drops_deadline(start: Start, product: str, version: int | str) -> bool:
    """Add to a field that has a deadline, and look at the replica's."""
    client, follower = a_pair(start, product, version)
    client.execute_command("HSETEX", "h", "EX", 600, "FIELDS", 1, "f", 1)
    client.hincrbyfloat("h", "f", 1.5)
    wait_until(lambda: follower.hget("h", "f") == b"2.5", "the replica to hear")
    return bool(follower.execute_command("HTTL", "h", "FIELDS", 1, "f") == [-1])


def shows_expired_passed_on(start: Start, product: str, version: int | str) -> bool:
    """Persist an expired field beside a live one, and look at the replica's."""
    client, follower = a_pair(start, product, version)
    client.hset("h", mapping={"f": "v", "live": "v"})
    client.execute_command("HPEXPIRE", "h", 30, "FIELDS", 1, "f")
    client.execute_command("HPEXPIRE", "h", 600_000, "FIELDS", 1, "live")
    wait_until(lambda: client.hget("h", "f") is None, "a field to expire")
    assert client.execute_command("HPERSIST", "h", "FIELDS", 2, "f", "live") == [-2, 1]
    wait_until(
        lambda: follower.execute_command("HTTL", "h", "FIELDS", 1, "live") == [-1],
        "the replica to hear",
    )
    assert client.hget("h", "f") is None
    return bool(follower.hget("h", "f") == b"v")


SHOWN: dict[str, Callable[[Start, str, int | str], bool]] = {
    "aof-replay": shows_aof_replay,
    "increment-drops-deadline": shows_increment_drops_deadline,
    "expired-passed-on": shows_expired_passed_on,
}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("product", "version"), SERVERS, ids=str)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_server_shows_the_faults_of_its_version_and_no_others(
    start_redis: Start, fault: ServerFault, product: str, version: int | str
) -> None:
    found = SHOWN[fault.name](start_redis, product, version)
    server = start_redis(version, product)
    numbers = server.version
    is_told = fault.server == product and fault.since <= numbers
    is_told = is_told and (fault.until is None or numbers < fault.until)
    assert found is is_told, (
        f"{product} {numbers} {'shows' if found else 'does not show'} {fault.name}: correct the"
        " versions in server_faults.py and docs/volatile_hashes.md"
    )


@pytest.mark.real
@pytest.mark.slow
def test_expired_fields_live_again_in_valkeys_file(start_redis: Start) -> None:
    server = start_redis("9.1", "valkey", enable_debug_command="yes", **AOF)
    client = server.client()
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    client.hset("h", mapping={"f": "v", "live": "v"})
    client.execute_command("HPEXPIRE", "h", 30, "FIELDS", 1, "f")
    client.execute_command("HPEXPIRE", "h", 600_000, "FIELDS", 1, "live")
    wait_until(lambda: client.hget("h", "f") is None, "a field to expire")
    client.execute_command("HPERSIST", "h", "FIELDS", 2, "f", "live")
    server.kill()
    server.restart()
    assert server.client().hget("h", "f") == b"v"


def test_the_page_has_the_table() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    table = {name: rest.split(" | ") for name, rest in rows if name in SHOWN}
    assert list(table) == [fault.name for fault in FAULTS] == list(SHOWN)
    for fault in FAULTS:
        expected = [fault.versions(), fault.seen, fault.when, fault.wrong, fault.lost, fault.remedy]
        assert table[fault.name] == expected


class TestByInfo:
    @pytest.mark.parametrize(
        ("info", "kind"),
        [
            ({"redis_version": "8.0.2", "gcc_version": "12.2.0"}, "redis"),
            (
                {"valkey_version": "9.1.2", "server_name": "valkey"},
                "valkey",
            ),
            ({"redis_version": "7.4.0", "dragonfly_version": "df-v1.27.1"}, ""),
            ({"redis_version": "7.2.4", "garnet_version": "1.0.50"}, ""),
            ({"redis_version": "7.2.4", "server_name": "another"}, ""),
            ({"redis_version": "unstable"}, ""),
            ({}, ""),
        ],
    )
    def test_a_server_is_known_by_its_answers(self, info: dict[str, str], kind: str) -> None:
        assert server_of(info)[0] == kind
        if not kind:
            assert reason_against(info) is not None

    @pytest.mark.parametrize(
        ("more", "named"),
        [
            ({}, []),
            ({"aof_enabled": "1"}, ["aof-replay"]),
            ({"connected_slaves": "1"}, []),
            ({"redis_version": "8.0.2", "connected_slaves": "1"}, ["increment-drops-deadline"]),
            ({"redis_version": "8.0.2", "role": "slave"}, ["increment-drops-deadline"]),
            ({"redis_version": "99.0"}, []),
            ({"valkey_version": "9.1.2", "server_name": "valkey"}, []),
            ({"valkey_version": "9.1.2", "connected_slaves": "2"}, ["expired-passed-on"]),
            ({"valkey_version": "9.1.2", "aof_enabled": "1"}, ["expired-passed-on"]),
        ],
    )
    def test_the_settings_decide(self, more: dict[str, str], named: list[str]) -> None:
        info = PLAIN | more
        assert [(each.fault.name, each.is_certain) for each in applying(info)] == [
            (name, True) for name in named
        ]
        assert (reason_against(info) is None) is not named
        assert reason_against(info, named) is None

    @pytest.mark.parametrize("hidden", ["aof_enabled", "connected_slaves"])
    def test_a_hidden_setting_is_no_good_one(self, hidden: str) -> None:
        info = {name: value for name, value in PLAIN.items() if name != hidden}
        info["redis_version"] = "8.0.2"
        assert any(not each.is_certain for each in applying(info))
        assert "does not tell" in str(reason_against(info))


@pytest.mark.real
class TestAuto:
    def test_is_native_where_no_fault_applies(self, redis8: RedisServer) -> None:
        hashes = VolatileHashes(redis8.client(), "n")
        assert hashes.open().backend == "native"

    def test_is_emulated_where_one_does(
        self, start_redis: Start, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = start_redis(8, appendonly="yes").client()
        with caplog.at_level(logging.INFO, "workstealing"):
            assert VolatileHashes(client, "n").open().backend == "emulated"
            assert VolatileHashes(client, "n").open().backend == "emulated"
        (line,) = [each for each in caplog.messages if "'n'" in each]
        assert "aof-replay" in line
        # The user's own word.
        assert VolatileHashes(client, "mine", backend="native").open().backend == "native"

    async def test_by_asyncio(self, start_redis: Start) -> None:
        server = start_redis(8, appendonly="yes")
        async with server.async_client() as client:
            assert (await AsyncVolatileHashes(client, "n").open()).backend == "emulated"

    def test_is_emulated_where_the_server_hides_its_info(self, start_redis: Start) -> None:
        server = start_redis(8)
        server.client().execute_command(
            *("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all", "-info")
        )
        client = redis.Redis(port=server.port, username="app", password="secret")
        assert VolatileHashes(client, "n").open().backend == "emulated"
        client.close()

    @pytest.mark.parametrize(
        "hidden", [("-info",), ("-info", "+info|memory"), ("-command",), ("-info", "-command")]
    )
    @pytest.mark.parametrize("kind", ["redis8", "valkey9"])
    def test_a_native_namespace_goes_on_where_the_server_is_hidden(
        self, request: pytest.FixtureRequest, kind: str, hidden: tuple[str, ...]
    ) -> None:
        server: RedisServer = request.getfixturevalue(kind)
        VolatileHashes(server.client(), "n", backend="native").hsetex("h", "f", "v", ex=600)
        server.client().execute_command(
            *("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *hidden)
        )
        with contextlib.closing(
            redis.Redis(port=server.port, username="app", password="secret")
        ) as client:
            hashes = VolatileHashes(client, "n")
            assert hashes.open().backend == "native"
            assert hashes.hgetdel("h", "f") == [b"v"]
            assert HashFieldExpiry(hashes).perform(Slice(5, 5.0)) == 0
            if kind == "valkey9":
                with pytest.raises(ConfigurationError, match="takes the hash's name"):
                    hashes.hsetex("nx", "f", "v", ex=60)

    @pytest.mark.parametrize("kind", ["redis62", "redis7"])
    def test_an_older_server_that_is_hidden_is_not_taken_for_native(
        self, request: pytest.FixtureRequest, kind: str
    ) -> None:
        server: RedisServer = request.getfixturevalue(kind)
        server.client().execute_command(
            *("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", "-info", "-command")
        )
        with contextlib.closing(
            redis.Redis(port=server.port, username="app", password="secret")
        ) as client:
            assert VolatileHashes(client, "n").open().backend == "emulated"
            with pytest.raises(ConfigurationError, match="this one lacks them"):
                VolatileHashes(client, "m", backend="native").open()

    def test_a_migration_is_refused_unless_the_fault_is_accepted(self, start_redis: Start) -> None:
        client = start_redis(8, appendonly="yes").client()
        hashes = VolatileHashes(client, "n")
        hashes.hsetex("h", "f", "v", ex=600)
        with pytest.raises(ConfigurationError, match="aof-replay"):
            MigrateToNative(hashes).perform(Slice(25, 5.0))
        assert VolatileHashes(client, "n").open().backend == "emulated"
        job = MigrateToNative(hashes, accept=["aof-replay", "increment-drops-deadline"])
        for _ in range(20):
            job.perform(Slice(25, 5.0))
        assert VolatileHashes(client, "n").open().backend == "native"
        assert hashes.hget("h", "f") == b"v"
        with pytest.raises(ConfigurationError, match="names no fault"):
            MigrateToNative(hashes, accept=["aof_replay"])


@pytest.mark.real
@pytest.mark.cluster
def test_a_migration_asks_all_nodes_of_a_cluster(cluster8: RedisCluster3) -> None:
    hashes = VolatileHashes(cluster8.client(), "n", backend="emulated")
    hashes.hsetex("h", "f", "v", ex=600)
    slot = key_slot(hashes.names.layout)
    others = [node for node in cluster8.nodes if node is not cluster8.node_of(slot)]
    for node in others:
        node.client().config_set("appendonly", "yes")
        try:
            with pytest.raises(ConfigurationError, match="aof-replay"):
                MigrateToNative(VolatileHashes(cluster8.client(), "n")).perform(Slice(25, 5.0))
        finally:
            node.client().config_set("appendonly", "no")
        assert VolatileHashes(cluster8.client(), "n").open().backend == "emulated"
    job = MigrateToNative(VolatileHashes(cluster8.client(), "n"))
    for _ in range(20):
        job.perform(Slice(25, 5.0))
    assert VolatileHashes(cluster8.client(), "n").open().backend == "native"


@pytest.fixture
def another_node(cluster8: RedisCluster3) -> Iterator[RedisServer]:
    """A primary that holds no layout of the namespace "nodes", with an AOF."""
    home = cluster8.node_of(key_slot(HashNames("nodes").layout))
    other = next(node for node in cluster8.nodes if node is not home)
    other.client().config_set("appendonly", "yes")
    yield other
    other.client().config_set("appendonly", "no")


@pytest.mark.real
@pytest.mark.cluster
class TestOtherNodes:
    """The settings of a cluster's nodes may differ."""

    def test_auto_is_emulated_where_any_node_has_a_fault(
        self,
        cluster8: RedisCluster3,
        another_node: RedisServer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level(logging.INFO, "workstealing"):
            assert VolatileHashes(cluster8.client(), "nodes").open().backend == "emulated"
        assert any("'nodes'" in each and "aof-replay" in each for each in caplog.messages)

    async def test_by_asyncio(self, cluster8: RedisCluster3, another_node: RedisServer) -> None:
        async with cluster8.async_client() as client:
            assert (await AsyncVolatileHashes(client, "nodes").open()).backend == "emulated"

    def test_auto_is_native_where_none_has(self, cluster8: RedisCluster3) -> None:
        assert VolatileHashes(cluster8.client(), "nodes").open().backend == "native"

    def test_a_node_that_cannot_be_asked_is_not_trusted(
        self, cluster8: RedisCluster3, another_node: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        another_node.client().config_set("appendonly", "no")
        for node in cluster8.nodes:
            hidden = ("-info",) if node is another_node else ()
            node.client().execute_command(
                *("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *hidden)
            )
        client = cluster8.client(username="app", password="secret")
        try:
            with caplog.at_level(logging.INFO, "workstealing"):
                assert VolatileHashes(client, "nodes").open().backend == "emulated"
        finally:
            for node in cluster8.nodes:
                node.client().acl_deluser("app")
        assert any("does not tell its version" in each for each in caplog.messages)

    def test_a_node_that_lacks_the_commands_is_not_trusted(
        self, redis7: RedisServer, redis8: RedisServer
    ) -> None:
        """A cluster in the midst of an upgrade, whose layout lies on an upgraded node."""
        layout = key_slot(HashNames("nodes").layout)
        home = sum(layout >= end for end in RedisCluster3.FIRST_SLOTS[1:])
        binaries = [redis8.binary if each == home else redis7.binary for each in range(3)]
        with RedisCluster3(binaries, name="mixed") as mixed:
            hashes = VolatileHashes(mixed.client(), "nodes")
            assert hashes.open().backend == "emulated"
            hashes.hsetex("h", "f", "v", ex=600)
            with pytest.raises(ConfigurationError, match="the server lacks HSETEX"):
                MigrateToNative(hashes).perform(Slice(25, 5.0))

    def test_a_native_namespace_is_looked_at_everywhere(
        self, cluster8: RedisCluster3, another_node: RedisServer
    ) -> None:
        hashes = VolatileHashes(cluster8.client(), "nodes", backend="native")
        hashes.hsetex("h", "f", "v", ex=600)
        found = hashes.inspect(hashes.check_steps(), 5.0)
        assert ", aof-replay" in [each.what for each in found]
        # One node a slice.
        job = HashFieldExpiry(hashes)
        slices = [Slice(5, 5.0) for _ in range(5)]
        assert [job.perform(each) for each in slices] == [0] * 5
        figures = [(each.measured or {}).get("server_faults") for each in slices]
        assert figures[0] == 0.0
        assert figures[2:] == [2.0, None, None]
        # The layout is known by then, and a minute has not passed.
        assert [each.operations for each in slices[3:]] == [0, 0]


@pytest.mark.real
class TestLater:
    """A native namespace whose server's settings change."""

    def test_the_doctors_check(self, start_redis: Start) -> None:
        server = start_redis(8)
        hashes = VolatileHashes(server.client(), "n")
        hashes.hsetex("h", "f", "v", ex=600)
        assert [each.level for each in hashes.inspect(hashes.check_steps(), 5.0)] == ["ok"]
        server.client().config_set("appendonly", "yes")
        found = hashes.inspect(hashes.check_steps(), 5.0)
        assert [(each.what, each.level) for each in found[1:]] == [
            (", aof-replay", WARNING),
            (", increment-drops-deadline", WARNING),
        ]
        # backend="emulated" would be refused: the namespace is native.
        for each in found[1:]:
            assert ": move the namespace by MigrateToEmulated, or " in each.said

    def test_a_slice_tells_it(self, start_redis: Start, caplog: pytest.LogCaptureFixture) -> None:
        server = start_redis(8)
        hashes = VolatileHashes(server.client(), "n")
        hashes.hsetex("h", "f", "v", ex=600)
        server.client().config_set("appendonly", "yes")
        job, slice = HashFieldExpiry(hashes), Slice(5, 5.0)
        number, _ = ANNOUNCEMENTS.since(0)
        with caplog.at_level(logging.WARNING, "workstealing"):
            assert job.perform(slice) == 0
            assert job.perform(Slice(5, 5.0)) == 0
        assert slice.measured == {"server_faults": 2.0}
        lines = [each for each in caplog.messages if "aof-replay" in each]
        assert len(lines) == 1
        # An event of the fleet, once for each.
        _, told = ANNOUNCEMENTS.since(number)
        assert [(each.kind, each.subject) for each in told] == [
            ("server_fault", "the native namespace 'n'")
        ] * 2

    def test_and_is_quiet_where_there_is_none(self, redis8: RedisServer) -> None:
        hashes = VolatileHashes(redis8.client(), "n")
        hashes.hsetex("h", "f", "v", ex=600)
        slice = Slice(5, 5.0)
        HashFieldExpiry(hashes).perform(slice)
        assert slice.measured == {"server_faults": 0.0}
        recruiter = Recruiter()
        recruiter.install(HashFieldExpiry(hashes), rate=1e-9)


@pytest.mark.real
class TestValkeysOwnWays:
    @pytest.mark.parametrize("name", sorted(MISTREATED_NAMES))
    def test_a_name_that_it_takes_for_an_option_is_refused(
        self, valkey9: RedisServer, name: bytes
    ) -> None:
        hashes = VolatileHashes(valkey9.client(), "n", backend="native")
        for each in (name, name.decode().upper()):
            with pytest.raises(ConfigurationError, match="takes the hash's name"):
                hashes.hsetex(each, "f", "v", ex=60)
            with pytest.raises(ConfigurationError, match="takes the hash's name"):
                hashes.pipeline().hsetex(each, "f", "v", px=60).execute()
        with pytest.raises(ConfigurationError):
            hashes.hgetex(name, "f", persist=True)
        assert valkey9.size() == 1
        hashes.hset(name, "f", "v")
        assert hashes.hexpire(name, 60, "f") == [1]
        assert hashes.hget(name, "f") == b"v"

    @pytest.mark.parametrize("name", [b"fields", "FIELDS"])
    def test_a_sum_that_its_replicas_would_miss_is_refused(
        self, valkey9: RedisServer, name: bytes | str
    ) -> None:
        # Valkey passes the sum of a field with a deadline on as an HSETEX.
        hashes = VolatileHashes(valkey9.client(), "n", backend="native")
        hashes.hset(name, "f", 1)
        assert hashes.hexpire(name, 600, "f") == [1]
        hashes.hset("other", "f", 1)
        hashes.hexpire("other", 600, "f")
        calls: list[Callable[[], Any]] = [
            lambda: hashes.hincrby(name, "f"),
            lambda: hashes.hincrbyfloat(name, "f"),
            lambda: hashes.execute_command(COUNT_EXISTING, name, "f", 1, "FXX"),
            lambda: hashes.execute_command(MOVE_FIELD, "other", name, "FIELDS", 2, "f", "g"),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match="takes the hash's name"):
                call()
        with pytest.raises(ConfigurationError, match="takes the hash's name"):
            hashes.pipeline().hincrby(name, "f").execute()
        assert hashes.hgetall(name) == {b"f": b"1"}
        assert hashes.hincrby("nx", "f") == 1
        assert hashes.execute_command(MOVE_FIELD, name, "other", "FIELDS", 2, "f", "g")

    @pytest.mark.parametrize("name", sorted(MISTREATED_NAMES))
    def test_its_replica_has_all_that_is_not_refused(self, start_redis: Start, name: bytes) -> None:
        client, follower = a_pair(start_redis, "valkey", "9.1")
        hashes = VolatileHashes(client, "n", backend="native")
        copied = VolatileHashes(follower, "n", backend="native")
        hashes.hset(name, mapping={"a": 1, "b": 1, "c": 1})
        calls: list[Callable[[], Any]] = [
            lambda: hashes.hexpire(name, 600, "a", "b", "c"),
            lambda: hashes.hpersist(name, "b"),
            lambda: hashes.hincrby(name, "a", 5),
            lambda: hashes.hincrbyfloat(name, "c", 0.5),
            lambda: hashes.hsetex(name, "a", "v", keepttl=True),
            lambda: hashes.hsetex(name, "d", "v", ex=600),
            lambda: hashes.hgetex(name, "b", ex=600),
            lambda: hashes.execute_command(MOVE_FIELD, name, "to", "FIELDS", 2, "a", name),
            lambda: hashes.execute_command(MOVE_FIELD, "to", name, "FIELDS", 2, name, "e"),
        ]
        for call in calls:
            with contextlib.suppress(ConfigurationError):
                call()
        client.set("heard", "yes")
        wait_until(lambda: follower.get("heard") == b"yes", "the replica to hear")
        fields = sorted(hashes.hkeys(name))
        assert hashes.hgetall(name) == copied.hgetall(name)
        assert hashes.hpexpiretime(name, *fields) == copied.hpexpiretime(name, *fields)

    @pytest.mark.parametrize("name", ["nx", "FXX", "fields"])
    def test_an_emulated_namespace_takes_any_name(self, valkey9: RedisServer, name: str) -> None:
        hashes = VolatileHashes(valkey9.client(), "n", backend="emulated")
        assert hashes.hsetex(name, "f", "v", ex=60)
        assert hashes.hgetex(name, "f", ex=60) == [b"v"]

    @pytest.mark.parametrize("backend", ["native", "emulated"])
    @pytest.mark.parametrize("kind", ["redis8", "valkey9"])
    def test_deadlines_past_the_year_4199_answer_alike(
        self, request: pytest.FixtureRequest, kind: str, backend: str
    ) -> None:
        server: RedisServer = request.getfixturevalue(kind)
        hashes = VolatileHashes(server.client(), "n", backend=backend)
        hashes.hset("h", "f", "v")
        late = LAST_DEADLINE_MS + 1
        calls: list[Callable[[], Any]] = [
            lambda: hashes.hsetex("h", "f", "w", pxat=late),
            lambda: hashes.hsetex("h", "f", "w", px=late),
            lambda: hashes.hsetex("h", "f", "w", ex=late // 1000),
            lambda: hashes.hgetex("h", "f", exat=late // 1000 + 1),
            lambda: hashes.hpexpireat("h", late, "f"),
            lambda: hashes.hexpire("h", late // 1000, "f"),
            lambda: hashes.hpexpireat("h", str(late), "f"),  # type: ignore[arg-type]
            lambda: hashes.hsetex("h", "f", "w", ex=str(late)),  # type: ignore[arg-type]
            lambda: hashes.hexpireat("h", datetime(9999, 1, 1, tzinfo=UTC), "f"),
            lambda: hashes.hsetex("h", "f", "w", ex=timedelta(days=900_000)),
            lambda: hashes.pipeline().hpexpire("h", late, "f").execute(),
            lambda: hashes.execute_command(*(STORE, "h", "FIELDS", 1, "f", "", late, "", "w", "")),
        ]
        for call in calls:
            with pytest.raises(redis.ResponseError, match="invalid expire time"):
                call()
        assert hashes.hget("h", "f") == b"v"
        assert hashes.hpttl("h", "f") == [-1]
        assert hashes.hpexpireat("h", LAST_DEADLINE_MS, "f") == [1]
        assert hashes.hsetex("h", "f", "w", pxat=LAST_DEADLINE_MS)


def test_the_last_deadline_is_the_same_in_scripts() -> None:
    lua = files("workstealing.lua").joinpath("volatile_hashes/hash.lua").read_text("utf-8")
    assert re.findall(r"^local LAST_DEADLINE = (.*)$", lua, re.MULTILINE) == [str(LAST_DEADLINE_MS)]


@pytest.mark.parametrize("backend", ["native", "emulated"])
@pytest.mark.real
def test_too_many_random_fields_are_refused(redis8: RedisServer, backend: str) -> None:
    hashes = VolatileHashes(redis8.client(), "n", backend=backend)
    hashes.hset("h", "f", "v")
    for count in (-100_001, -(2**40), -(2**63)):
        with pytest.raises(ConfigurationError, match="at most 100,000"):
            hashes.hrandfield("h", count)
    assert len(hashes.hrandfield("h", -100_000)) == 100_000
    assert hashes.hrandfield("h", 2**40) == [b"f"]
