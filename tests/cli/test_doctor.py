"""`workstealing doctor` on real servers, healthy and otherwise."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.delaying_relay import DelayingRelay
from support.processes import free_port
from support.servers import RedisCluster3, RedisServer
from workstealing.cli.checks import extras
from workstealing.structures import VolatileHashes

pytestmark = pytest.mark.real

MakeApp = Callable[[str], str]
URLS = ("REDIS_URL", "WORKSTEALING_REDIS_URL")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*URLS, "WORKSTEALING_APP", "WORKSTEALING_DISABLED"):
        monkeypatch.delenv(variable, raising=False)


def checks(answer: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return level and sentence of each check by what was looked at; the last of a name."""
    return {each["what"]: (each["level"], each["said"]) for each in answer["checks"]}


def test_without_a_server_the_environment_is_examined(command: Any) -> None:
    said = command.json("doctor")
    assert said["is_well"] is True
    found = checks(said)
    assert "redis-py" in found["python"][1]
    assert found["server"] == ("note", "no server was named: give --url or --app to examine one")


def test_the_extras_are_those_of_the_installed_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    found = extras()
    assert set(found) <= set(declared) - {"all"}
    assert found["flask"] == []


def test_a_missing_extra_is_noted(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "workstealing.cli.checks.importlib.metadata.requires",
        lambda name: ["redis>=8", "no-such-thing>=1; extra == 'colour'"],
    )
    level, said = checks(command.json("doctor"))["extra colour"]
    assert level == "note"
    assert "no-such-thing not installed" in said
    assert "pip install 'workstealing[colour]'" in said


def test_redis_7_emulates(command: Any, redis7: RedisServer) -> None:
    found = checks(command.json("doctor", "--url", redis7.url))
    assert found["server"][1].startswith("Redis 7.")
    assert found["eviction"][1].startswith("noeviction")
    assert "scripts expire hash fields" in found["native"][1]
    assert "ms: a slice of 10 ms has time for" in found["round trip"][1]
    text = command("doctor", "--url", redis7.url)
    assert "ok      server" in text


def test_a_far_server_needs_longer_slices(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    with DelayingRelay(redis7.port, 0.008) as relay:
        app = app_module(
            f"""
            from workstealing import Recruiter, connect
            from workstealing.jobs import HashFieldExpiry
            from workstealing.structures import VolatileHashes

            client = connect("redis://127.0.0.1:{relay.port}/0")
            hashes = VolatileHashes(client, namespace="far", backend="emulated")
            recruiter = Recruiter()
            recruiter.install(HashFieldExpiry(hashes, name="short"), rate=0.1)
            recruiter.install(HashFieldExpiry(hashes, name="long"), rate=0.1, seconds=5.0)
            """
        )
        found = command.json("doctor", "--app", app)["checks"]
    warnings = {each["what"]: each["said"] for each in found if each["level"] == "warning"}
    assert "8 are wanted: seconds=0." in warnings["round trip"]
    assert "its slices of 10 ms have time for 1 round trips of" in warnings["job short"]
    assert "install it with seconds=0." in warnings["job short"]
    assert "up to 100 ms" in warnings["job short"]
    assert "install it with" not in warnings.get("job long", "")


def test_redis_8_is_native(command: Any, redis8: RedisServer) -> None:
    found = checks(command.json("doctor", "--url", redis8.url))
    assert found["server"][1].startswith("Redis 8.")
    assert "expires hash fields itself" in found["native"][1]


def test_valkey_is_named(command: Any, valkey8: RedisServer) -> None:
    assert checks(command.json("doctor", "--url", valkey8.url))["server"][1].startswith("Valkey 8.")


@pytest.mark.cluster
def test_each_node_of_a_cluster_is_examined(command: Any, cluster: RedisCluster3) -> None:
    said = command.json("doctor", "--url", cluster.url)
    assert len([each for each in said["checks"] if each["what"] == "server"]) == 3


def test_an_eviction_policy_that_tears_structures_apart(
    command: Any, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(7, maxmemory="50mb", maxmemory_policy="allkeys-lru")
    said = command.json("doctor", "--url", server.url, status=1)
    level, sentence = checks(said)["eviction"]
    assert (said["is_well"], level) == (False, "fault")
    assert "allkeys-lru" in sentence
    assert checks(said)["memory"][1].endswith("of 52.4 MB used")


def test_a_replica_is_no_place_for_jobs(
    command: Any, redis7: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    replica = start_redis(7, replicaof=f"127.0.0.1 {redis7.port}")
    level, sentence = checks(command.json("doctor", "--url", replica.url, status=1))["role"]
    assert level == "fault"
    assert "replica" in sentence


def test_a_server_that_is_not_there(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    assert "the Redis at --url cannot be used" in command.refused("doctor", "--url", nobody)
    monkeypatch.setenv("REDIS_URL", nobody)
    level, sentence = checks(command.json("doctor", status=1))["server"]
    assert level == "fault"
    assert "cannot be used: ConnectionError" in sentence


def test_a_password_is_never_shown(command: Any, redis7: RedisServer) -> None:
    said = command.refused("doctor", "--url", f"redis://who:secret@127.0.0.1:{redis7.port}")
    assert "secret" not in said


def test_disabled_recruiting_is_a_warning(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKSTEALING_DISABLED", "1")
    assert checks(command.json("doctor"))["recruiting"][0] == "warning"


APP = """
    import redis
    from workstealing import Hooks, Recruiter
    from workstealing.jobs import HashFieldExpiry
    from workstealing.structures import VolatileHashes

    client = redis.Redis(host="127.0.0.1", port={port}, {options})
    recruiter = Recruiter()
    hashes = VolatileHashes(client, namespace="cli")
    recruiter.install(HashFieldExpiry(hashes, name="expiry"), rate=0.25)
"""


def test_an_application_is_examined(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    name = app_module(APP.format(port=redis7.port, options="socket_timeout=None"))
    found = checks(command.json("doctor", "--app", name))
    assert found["client"][1].startswith("Redis; retries 10 (jobs never do")
    assert found["socket_timeout"][0] == "warning"
    assert found["socket_connect_timeout"][0] == "ok"
    assert found["server"][1].startswith("Redis 7.")
    assert found["jobs"] == ("ok", "1 installed, rates together 0.25: expiry")
    assert found["hooks"][0] == "note"
    assert found["job expiry"] == ("note", "namespace cli: nothing has been written yet")
    VolatileHashes(redis7.client(), namespace="cli").hsetex("a", "b", 1, ex=60)
    found = checks(command.json("doctor", "--app", name))
    assert found["job expiry"][1] == "namespace cli: emulated, layout version 1"


def test_a_foreign_layout_is_a_fault(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    redis7.client().set("ws:cli:layout", "mine")
    name = app_module(APP.format(port=redis7.port, options="db=0"))
    level, said = checks(command.json("doctor", "--app", name, status=1))["job expiry"]
    assert level == "fault"
    assert "LayoutError" in said


def test_an_application_whose_server_is_gone(command: Any, app_module: MakeApp) -> None:
    name = app_module(APP.format(port=free_port(), options="db=0"))
    level, said = checks(command.json("doctor", "--app", name, status=1))["server"]
    assert level == "fault"
    assert "the server of job expiry cannot be used" in said


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        ("redis.RedisCluster", "RedisCluster"),
        ("redis.asyncio.RedisCluster", "asyncio RedisCluster"),
        ("redis.asyncio.Redis", "asyncio Redis"),
    ],
)
@pytest.mark.cluster
def test_clients_of_every_kind_are_examined(
    command: Any, app_module: MakeApp, cluster: RedisCluster3, make: str, kind: str
) -> None:
    source = APP.replace("redis.Redis(", f"{make}(").replace("import redis", "import redis.asyncio")
    if "asyncio" in make:
        source = source.replace("VolatileHashes", "AsyncVolatileHashes")
    name = app_module(source.format(port=cluster.port, options="socket_timeout=1.5"))
    found = checks(command.json("doctor", "--app", name))
    assert found["client"][1].startswith(f"{kind}; retries ")
    assert found["socket_timeout"] == ("ok", "1.5 s")
    # An asyncio client has not asked for the cluster's map yet.
    error = "Unmapped" if "RedisCluster" in make else "Moved"
    begins = f"volatile hashes cli: {error}: " if "asyncio" in make else "namespace cli: "
    assert found["job expiry"][1].startswith(begins)


def test_a_recruiter_without_jobs_is_a_warning(command: Any, app_module: MakeApp) -> None:
    name = app_module("from workstealing import Recruiter\nrecruiter = Recruiter()")
    assert checks(command.json("doctor", "--app", name))["jobs"][0] == "warning"


@pytest.mark.parametrize(
    "case",
    [("yes", "native", True), ("no", "native", False), ("yes", "emulated", False)],
)
def test_a_native_namespace_on_a_server_with_an_aof(
    command: Any,
    app_module: MakeApp,
    start_redis: Callable[..., RedisServer],
    case: tuple[str, str, bool],
) -> None:
    appendonly, backend, is_said = case
    server = start_redis(8, appendonly=appendonly)
    VolatileHashes(server.client(), "cli", backend=backend).hsetex("a", "b", 1, ex=60)
    found = checks(
        command.json("doctor", "--app", app_module(APP.format(port=server.port, options="db=0")))
    )
    assert found["job expiry"][1].startswith(f"namespace cli: {backend}")
    assert ("job expiry, AOF" in found) is is_said
    if is_said:
        level, sentence = found["job expiry, AOF"]
        assert level == "warning"
        assert "with appendonly yes" in sentence
        assert "HPERSIST was acknowledged" in sentence
