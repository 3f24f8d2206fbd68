"""`workstealing doctor` on real servers, healthy and otherwise."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from support.delaying_relay import DelayingRelay
from support.patience import GUARD_SECONDS
from support.processes import free_port
from support.servers import RedisCluster3, RedisServer, sentinel_of
from workstealing.cli.checks import extras
from workstealing.cli.server_checks import _is_native as is_native
from workstealing.cli.server_checks import field_expiry, memory
from workstealing.store.job_client import job_client_of
from workstealing.structures import Ick, VolatileHashes

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


def test_missing_extras_are_one_line(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "workstealing.cli.checks.importlib.metadata.requires",
        lambda name: [
            "redis>=8",
            "no-such-thing>=1; extra == 'colour'",
            "nor-this; extra == 'colour'",
            "no-such-thing>=1; extra == 'sound'",
            "redis; extra == 'smell'",
        ],
    )
    found = command.json("doctor")["checks"]
    assert [
        (each["what"], each["level"], each["said"]) for each in found if "extra" in str(each)
    ] == [
        ("extras", "ok", "installed: smell"),
        (
            "other extras",
            "note",
            (
                "not installed, with what is missing: colour (no-such-thing, nor-this), sound"
                " (no-such-thing); if you need one: pip install 'workstealing[EXTRA]'"
            ),
        ),
    ]


def test_each_server_is_named_with_its_place(
    command: Any, redis7: RedisServer, cluster: RedisCluster3
) -> None:
    for url, place in (
        (f"redis://127.0.0.1:{redis7.port}/3", f"127.0.0.1:{redis7.port}, database 3"),
        (f"unix://{redis7.socket}?db=2", f"{redis7.socket}, database 2"),
    ):
        level, said = checks(command.json("doctor", "--url", url))["server"]
        assert (level, said.partition(" at ")[2]) == ("ok", f"{place}, standalone")
    said = [each["said"] for each in command.json("doctor", "--url", cluster.url)["checks"]]
    for node in cluster.nodes:
        assert any(f" at 127.0.0.1:{node.port}, cluster" in each for each in said)


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


def test_redis_8_whose_fault_applies_is_not_for_new_namespaces(
    command: Any, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(8, appendonly="yes")
    level, said = checks(command.json("doctor", "--url", server.url))["native"]
    assert level == "note"
    assert 'itself, but "auto" takes that for no new namespace: with appendonly yes' in said


def test_valkey_is_named_with_its_mode(command: Any, valkey8: RedisServer) -> None:
    _, said = checks(command.json("doctor", "--url", valkey8.url))["server"]
    assert said.startswith("Valkey 8.")
    assert said.endswith(", standalone")


def test_redis_62_does_not_hold_scripts_to_its_replicas(
    command: Any, redis62: RedisServer, start_redis: Callable[..., RedisServer]
) -> None:
    with redis62.client() as client:
        assert "replicas" not in checks(command.json("doctor", "--url", redis62.url))
        client.config_set("min-replicas-to-write", 1)
        try:
            found = checks(command.json("doctor", "--url", redis62.url))
            # So the check says what the server does.
            VolatileHashes(client, "n", backend="emulated").hset("k", "f", 1)
        finally:
            client.config_set("min-replicas-to-write", 0)
    level, said = found["replicas"]
    assert level == "warning"
    assert said.startswith("min-replicas-to-write does not bind the scripts of Redis 6.2.")
    newer = start_redis(7, min_replicas_to_write=1)
    assert "replicas" not in checks(command.json("doctor", "--url", newer.url))
    with pytest.raises(redis.ResponseError, match="NOREPLICAS"):
        newer.client().eval("return redis.call('SET', KEYS[1], 1)", 1, "k")


@pytest.mark.parametrize(
    ("refusal", "is_known"),
    [
        (redis.exceptions.NoPermissionError("this user has no permissions to run 'eval'"), True),
        (redis.ResponseError("unknown command 'EVAL', with args beginning with: "), True),
        (
            redis.ResponseError("The user executing the script can't run this command or"),
            True,
        ),
        (redis.ResponseError("BUSY Redis is busy running a script."), False),
        (redis.ResponseError("MISCONF Redis is configured to save RDB snapshots"), False),
        (redis.ConnectionError("nobody there"), False),
    ],
)
def test_only_what_the_user_may_not_ask_means_not_native(
    redis8: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Exception,
    is_known: bool,
) -> None:
    hashes = VolatileHashes(redis8.client(), "new")
    assert is_native(hashes)

    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(hashes, "inspect", refuse)
    if is_known:
        assert not is_native(hashes)
    else:
        with pytest.raises(type(refusal)):
            is_native(hashes)


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
    recruiter = Recruiter(seconds=5.0)
    hashes = VolatileHashes(client, namespace="cli")
    recruiter.install(HashFieldExpiry(hashes, name="expiry"), rate=0.25)
"""


def test_an_application_is_examined(command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
    # redis-py's own defaults differ from version to version.
    retry = "redis.retry.Retry(redis.backoff.NoBackoff(), 4)"
    options = f"socket_timeout=None, socket_connect_timeout=5, retry={retry}"
    name = app_module(APP.format(port=redis7.port, options=options))
    found = checks(command.json("doctor", "--app", name))
    assert found["client"][1].startswith("Redis; retries 4 (jobs never do")
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
    assert said.endswith(", database 0)")


@pytest.mark.slow
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
    assert ("job expiry, aof-replay" in found) is is_said
    if is_said:
        level, sentence = found["job expiry, aof-replay"]
        assert level == "warning"
        assert "with appendonly yes" in sentence
        assert "acknowledged fields are lost" in sentence


RESTRICTED = """
    from workstealing import Recruiter, connect
    from workstealing.jobs import IckReaper
    from workstealing.structures import Ick

    ick = Ick(connect("redis://who:secret@127.0.0.1:{port}/0"), "list")
    recruiter = Recruiter(seconds=5.0)
    recruiter.install(IckReaper(ick, lease=10), rate=0.1)
"""


class TestWhatTheUserMayDo:
    def ask(
        self, command: Any, app_module: MakeApp, server: RedisServer, rights: str, status: int = 0
    ) -> list[dict[str, Any]]:
        admin = server.client()
        Ick(admin, "list").add("m")
        before = admin.execute_command("DBSIZE")
        admin.execute_command(f"ACL SETUSER who reset on >secret resetchannels {rights}")
        try:
            app = app_module(RESTRICTED.format(port=server.port))
            said = command.json("doctor", "--app", app, status=status)["checks"]
        finally:
            admin.execute_command("ACL DELUSER who")
        assert admin.execute_command("DBSIZE") == before
        return [each for each in said if each["what"].endswith(" rights")]

    def test_the_printed_rule_is_enough(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        line = command("acl", "--structure", "ick", "--name", "list")
        (found,) = self.ask(command, app_module, redis7, line.partition("resetchannels ")[2])
        assert found["level"] == "ok"
        assert "may do all that Ick list needs" in found["said"]

    @pytest.mark.parametrize("missing", ["zadd", "watch", "exec", "multi", "evalsha", "time"])
    def test_an_acl_that_stops_every_slice(
        self, command: Any, app_module: MakeApp, redis7: RedisServer, missing: str
    ) -> None:
        found = self.ask(command, app_module, redis7, f"~* +@all -{missing}", status=1)
        (fault,) = [each for each in found if each["level"] == "fault"]
        assert f"refuses {missing.upper()} to the user" in fault["said"]
        assert "workstealing acl" in fault["said"]

    def test_keys_that_are_closed_to_the_user(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        (fault, *_) = self.ask(command, app_module, redis7, "~list +@all", status=1)
        assert fault["level"] == "fault"
        assert "refuses keys of Ick list" in fault["said"]

    def test_what_jobs_can_do_without(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        well, spared = self.ask(command, app_module, redis7, "~* +@all -role")
        assert (well["level"], spared["level"]) == ("ok", "note")
        assert "refuses ROLE" in spared["said"]


EVERYTHING = """
    from workstealing import Fleet, Recruiter, connect
    from workstealing.jobs import AdoptHashes, FleetRebalance, HashFieldExpiry
    from workstealing.metrics.ledger import Ledger
    from workstealing.structures import VolatileHashes

    client = connect("redis://who:secret@127.0.0.1:{port}/0")
    recruiter = Recruiter(seconds=5.0)
"""


class TestWhatJobsNeedBesides:
    def ask(
        self, command: Any, app_module: MakeApp, server: RedisServer, refused: str, app: str
    ) -> list[tuple[str, str]]:
        """Return the faults that are found for a user who may not send a command."""
        admin = server.client()
        admin.execute_command(f"ACL SETUSER who reset on >secret ~* +@all -{refused}")
        try:
            module = app_module(EVERYTHING.format(port=server.port) + app)
            said = command.json("doctor", "--app", module, status=1)["checks"]
        finally:
            admin.execute_command("ACL DELUSER who")
        return [
            (each["what"], each["said"])
            for each in said
            if each["level"] == "fault" and each["what"].endswith(" rights")
        ]

    @pytest.mark.parametrize("is_used", [True, False])
    def test_a_native_namespace(
        self, command: Any, app_module: MakeApp, redis8: RedisServer, is_used: bool
    ) -> None:
        if is_used:
            VolatileHashes(redis8.client(), "items").hsetex("h", "f", "v", ex=60)
        app = """
    recruiter.install(HashFieldExpiry(VolatileHashes(client, "items"), name="j"), rate=0.1)
"""
        (fault,) = self.ask(command, app_module, redis8, "hgetex", app)
        assert fault[0] == "job j rights"
        assert "refuses HGETEX to the user" in fault[1]

    def test_an_emulated_one_needs_none_of_these(
        self, command: Any, app_module: MakeApp, redis8: RedisServer
    ) -> None:
        app = """
    hashes = VolatileHashes(client, "items", backend="emulated")
    hashes.open()
    recruiter.install(HashFieldExpiry(hashes, name="j"), rate=0.1)
"""
        (fault,) = self.ask(command, app_module, redis8, "hgetex -zmscore", app)
        assert "refuses ZMSCORE to the user" in fault[1]

    def test_what_redis_6_lacks_is_no_fault(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        app = """
    recruiter.install(HashFieldExpiry(VolatileHashes(client, "items"), name="j"), rate=0.1)
"""
        (fault,) = self.ask(command, app_module, redis7, "expiretime -pexpiretime -zmscore", app)
        assert "refuses ZMSCORE to the user" in fault[1]

    def test_an_adoption_walks(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        app = """
    recruiter.install(AdoptHashes(VolatileHashes(client, "items"), "o:*", ttl=9), rate=0.1)
    recruiter.install(HashFieldExpiry(VolatileHashes(client, "items")), rate=0.1)
"""
        (fault,) = self.ask(command, app_module, redis7, "scan", app)
        assert fault[0] == "job adopt_hashes.items rights"
        assert "refuses SCAN to the user" in fault[1]

    def test_keys_that_move(self, command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
        app = f"""
    other = connect("redis://who:secret@127.0.0.1:{redis7.port}/1")
    fleet = Fleet({{"a": client, "b": other}}, previous=["a"])
    recruiter.install(HashFieldExpiry(VolatileHashes(fleet, "items")), rate=0.1)
"""
        faults = self.ask(command, app_module, redis7, "restore", app)
        assert len(faults) == 2
        assert all("refuses RESTORE to the user" in said for _, said in faults)
        assert "volatile hashes items on b needs" in faults[1][1]

    def test_a_ledger(self, command: Any, app_module: MakeApp, redis7: RedisServer) -> None:
        app = """
    recruiter.add_hook(Ledger(client))
    recruiter.install(HashFieldExpiry(VolatileHashes(client, "items"), name="j"), rate=0.1)
"""
        faults = dict(self.ask(command, app_module, redis7, "hincrby", app))
        assert set(faults) == {"job j rights", "ledger default rights"}
        fault = ("", faults["ledger default rights"])
        assert "refuses HINCRBY to the user" in fault[1]


FLEET = """
    from workstealing import Fleet, Recruiter
    from workstealing.jobs import FleetRebalance, HashFieldExpiry, QueueExpiry
    from workstealing.structures import VolatileHashes

    fleet = Fleet(
        {{"a": "redis://127.0.0.1:{a}", "b": "redis://default:secret@127.0.0.1:{b}"}}, {options}
    )
    hashes = VolatileHashes(fleet, "items")
    recruiter = Recruiter(seconds=5.0)
    recruiter.install(HashFieldExpiry(hashes), rate=0.1)
"""


class TestFleets:
    def test_each_node_is_examined_and_a_dead_one_named(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        app = app_module(FLEET.format(a=redis7.port, b=free_port(), options=""))
        said = command.json("doctor", "--app", app, status=1)
        found = checks(said)
        assert found["fleet"] == ("ok", "job hash_field_expiry.items serves 2 nodes: a, b")
        for what in ("server", "eviction", "memory", "native", "clock", "round trip"):
            assert found[f"node a {what}"][0] == "ok"
        level, sentence = found["node b server"]
        assert level == "fault"
        assert "cannot be used" in sentence
        assert "secret" not in str(said)
        assert "node b eviction" not in found
        lines = [each["said"] for each in said["checks"]]
        assert "namespace items on a: nothing has been written yet" in lines

    def test_keys_on_the_move(
        self,
        command: Any,
        app_module: MakeApp,
        redis7: RedisServer,
        start_redis: Callable[..., RedisServer],
    ) -> None:
        places = {"a": redis7.port, "b": start_redis(7).port, "options": "previous=['a']"}
        alone = FLEET.format(**places)
        level, sentence = command.checks(app_module(alone))["fleet"]
        assert level == "warning"
        assert "keys move to new homes, from a: install FleetRebalance" in sentence
        carried = f"{alone}    recruiter.install(FleetRebalance(hashes, None), rate=0.1)\n"
        level, sentence = command.checks(app_module(carried))["fleet"]
        assert level == "note"
        assert "FleetRebalance carries those that nobody uses" in sentence

    def test_jobs_that_take_the_fleet_itself(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        source = FLEET.format(a=redis7.port, b=redis7.port, options="")
        app = app_module(f"{source}    recruiter.install(QueueExpiry(fleet), rate=0.1)\n")
        found = command.checks(app)
        assert found["job queue_expiry.shuffle_queues rights"][0] == "ok"
        assert found["node b server"][0] == "ok"


def test_a_structure_of_no_rule_is_told(
    command: Any, app_module: MakeApp, redis7: RedisServer
) -> None:
    app = app_module(
        f"""
        from workstealing import Recruiter, connect
        from workstealing.recruiting.job import Job
        from workstealing.store.job_client import job_client_of
        from workstealing.structures.structure import Structure

        class Heap(Structure):
            kind = "heap"
            name = "own"
            client = connect("redis://127.0.0.1:{redis7.port}")
            job_client = job_client_of(client)

        class Sift(Job):
            name = "sift"
            structures = (Heap(),)

            def perform(self, slice):
                return 0

        recruiter = Recruiter(seconds=5.0)
        recruiter.install(Sift(), rate=0.1)
        """
    )
    level, sentence = command.checks(app)["job sift rights"]
    assert level == "note"
    assert sentence == "no rule is known for heap own: its rights were not looked at"


@pytest.mark.parametrize(
    "service", [(7, "refused"), (7, "renamed"), (8, "refused"), (8, "renamed")], ids=str
)
def test_a_service_that_forbids_to_look(
    command: Any,
    app_module: MakeApp,
    start_redis: Callable[..., RedisServer],
    tmp_path: Path,
    service: tuple[int, str],
) -> None:
    major, how = service
    forbidden = ("info", "config", "client", "command", "acl", "role", "time", "script")
    settings = tmp_path / "renamed.conf"
    lines = [f'rename-command {each} ""' for each in forbidden] if how == "renamed" else []
    settings.write_text("\n".join(lines))
    server = start_redis(major, include=settings)
    user = "default:"
    if how == "refused":
        user, rules = "managed:secret", " ".join(f"-{each}" for each in forbidden)
        server.client().execute_command(f"ACL SETUSER managed reset on >secret ~* +@all {rules}")
    said = command.json("doctor", "--url", f"redis://{user}@127.0.0.1:{server.port}")
    found = checks(said)
    for what in ("server", "role", "eviction", "memory", "native", "clock"):
        level, sentence = found[what]
        assert level == "note", (what, sentence)
        assert "unknown" in sentence or "not tell" in sentence
    assert said["is_well"] is True
    # A structure on it works without, apart from TIME, which no service forbids.
    app = app_module(
        f"""
        from workstealing import Recruiter, connect
        from workstealing.jobs import HashFieldExpiry
        from workstealing.structures import VolatileHashes

        client = connect("redis://{user}@127.0.0.1:{server.port}")
        recruiter = Recruiter(seconds=5.0)
        recruiter.install(HashFieldExpiry(VolatileHashes(client, "items"), name="j"), rate=0.1)
        """
    )
    rights = [
        (each["level"], each["said"])
        for each in command.json("doctor", "--app", app, status=1)["checks"]
        if each["what"] == "job j rights"
    ]
    (fault, note) = rights
    assert fault[0] == "fault"
    assert "refuses TIME to the user, which volatile hashes items needs" in fault[1]
    assert note[0] == "note"
    assert "refuses COMMAND|INFO, INFO, ROLE to the user" in note[1]


@pytest.mark.parametrize(
    ("policy", "level", "words"),
    [
        ("noeviction", "ok", "jobs can still delete"),
        ("volatile-lru", "ok", "evicts the least recently used of the keys that have an EXPIRE"),
        ("volatile-lfu", "ok", "the least often used of the keys that have an EXPIRE"),
        ("volatile-random", "ok", "random ones of the keys that have an EXPIRE"),
        ("volatile-ttl", "ok", "those that end soonest of the keys that have an EXPIRE"),
        ("allkeys-lru", "fault", "the least recently used of all keys"),
        ("allkeys-lfu", "fault", "the least often used of all keys"),
        ("allkeys-random", "fault", "random ones of all keys"),
        ("newest-first", "note", "newest-first is not known here"),
    ],
)
def test_every_eviction_policy(policy: str, level: str, words: str) -> None:
    found = {each.what: each for each in memory({"maxmemory_policy": policy})}
    assert found["eviction"].level == level
    assert words in found["eviction"].said
    assert found["memory"].level == "note"


class TestFieldExpiry:
    def test_a_server_that_keeps_up(
        self, command: Any, redis8: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A busy machine's server may lag in truth, so the limit is far.
        monkeypatch.setattr("workstealing.cli.server_checks.LAG_SECONDS", GUARD_SECONDS)
        found = checks(command.json("doctor", "--url", redis8.url))
        level, sentence = found["field expiry"]
        assert level == "ok"
        assert sentence.startswith("the server removed expired fields within ")
        assert redis8.size() == 0

    def test_a_server_that_lags(
        self, command: Any, start_redis: Callable[..., RedisServer]
    ) -> None:
        server = start_redis(8, enable_debug_command="yes")
        server.client().execute_command("DEBUG SET-ACTIVE-EXPIRE 0")
        level, sentence = checks(command.json("doctor", "--url", server.url))["field expiry"]
        assert level == "warning"
        assert "50 of 50 expired fields were still there" in sentence
        assert server.size() == 0

    def test_a_user_without_the_right(self, command: Any, redis8: RedisServer) -> None:
        admin = redis8.client()
        admin.execute_command("ACL SETUSER who reset on >secret ~* +@all -hsetex")
        try:
            url = f"redis://who:secret@127.0.0.1:{redis8.port}"
            level, sentence = checks(command.json("doctor", "--url", url))["field expiry"]
        finally:
            admin.execute_command("ACL DELUSER who")
        assert level == "note"
        assert "is unknown" in sentence

    def test_its_key_ends_though_the_doctor_is_killed(
        self, redis8: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = redis8.client()

        def die(seconds: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("workstealing.cli.server_checks.time.sleep", die)
        with pytest.raises(KeyboardInterrupt):
            field_expiry(job_client_of(client), None)
        # Its fields expire, too, and with the last one the key is gone: that is -2.
        left = [client.pttl(each) for each in client.keys("*:ws:doctor:*")]
        assert all(each == -2 or 0 < each <= 60_000 for each in left)


def test_sentinels_are_asked(command: Any, redis7: RedisServer, tmp_path: Path) -> None:
    with sentinel_of(redis7, tmp_path) as port:
        url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{port}/main"
        found = [
            each
            for each in command.json("doctor", "--url", url)["checks"]
            if each["what"] == "sentinel"
        ]
    (alive, dead) = sorted(found, key=lambda each: str(each["level"]))
    assert (alive["level"], dead["level"]) == ("ok", "warning")
    assert f"names 127.0.0.1:{redis7.port} as the master" in alive["said"]


@pytest.mark.cluster
def test_a_clusters_state_is_told(command: Any, cluster: RedisCluster3) -> None:
    said = command.json("doctor", "--url", cluster.url)["checks"]
    found = [each for each in said if each["what"] == "cluster"]
    assert len(found) == 3
    for each in found:
        assert each["level"] == "ok"
        assert "state ok, 16384 of 16384 slots are served by 3 masters" in each["said"]


TWO_SERVERS = """
    import redis
    from workstealing import Recruiter
    from workstealing.jobs import IckReaper
    from workstealing.structures import Ick

    recruiter = Recruiter()
    for port in ({a}, {b}):
        ick = Ick(redis.Redis(port=port), "mail")
        recruiter.install(IckReaper(ick, 60, name=f"mail on {{port}}"), rate=0.01)
"""


def test_each_line_names_its_server_where_there_are_two(
    command: Any, app_module: MakeApp, redis7: RedisServer, redis8: RedisServer
) -> None:
    app = app_module(TWO_SERVERS.format(a=redis7.port, b=redis8.port))
    found = checks(command.json("doctor", "--app", app))
    for server in (redis7, redis8):
        (line,) = [what for what in found if what.endswith(f":{server.port}, database 0 memory")]
        assert found[line][0] in {"ok", "note", "warning"}
    assert "memory" not in found
    # Of one server the lines are as short as before.
    url = f"redis://127.0.0.1:{redis7.port}"
    assert "memory" in checks(command.json("doctor", "--url", url))
