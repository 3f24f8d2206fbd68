"""`workstealing acl`: one line, which a server takes, and which never holds a secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from support.acl import say_line
from support.dashboards import TOKEN, make_app
from support.servers import RedisServer, sentinel_of, wait_until
from workstealing import Recruiter, connect
from workstealing.dashboard.security import counted_by_fleet
from workstealing.jobs import (
    AdoptHashes,
    FairQueueReaper,
    HashFieldExpiry,
    NativeFieldAudit,
    QueueExpiry,
    StreamLeftovers,
    TagSetLeftovers,
)
from workstealing.jobs.leftovers.undoing import undo
from workstealing.metrics.ledger import Ledger, total
from workstealing.metrics.ledger import read as read_ledger
from workstealing.metrics.shared_settings import SharedSettings, follow
from workstealing.recruiting.slice import Slice
from workstealing.structures import FairQueue, ShuffleQueue, VolatileHashes
from workstealing.testing import always

MakeApp = Callable[[str], str]

APP = """
    from workstealing import Recruiter, connect
    from workstealing.jobs import HashFieldExpiry, IckReaper
    from workstealing.metrics.ledger import Ledger, total
    from workstealing.structures import Ick, VolatileHashes

    client = connect("redis://nobody:verysecret@127.0.0.1:1/0")
    recruiter = Recruiter()
    recruiter.install(HashFieldExpiry(VolatileHashes(client, namespace="items")), rate=0.1)
    recruiter.install(IckReaper(Ick(client, "list"), lease=10), rate=0.1)
    recruiter.add_hook(Ledger(client))
"""


def test_an_application_gets_one_line_for_all(command: Any, app_module: MakeApp) -> None:
    app = app_module(APP)
    line = command("acl", "--app", app, "--keys", "item:*", "--user", "shop")
    assert line.count("\n") == 1
    assert line.startswith("ACL SETUSER shop reset on >PASSWORD resetchannels ~")
    for pattern in ("{*}:ws:items:*", "item:*", "list", "{workstealing:ledger:default}:*"):
        assert f" ~{pattern} " in line
    assert " ~* " not in line
    assert "verysecret" not in line + command.err
    said = command.json("acl", "--app", app, "--keys", "item:*")
    assert [each["kind"] for each in said["structures"]] == ["volatile hashes", "Ick", "ledger"]


OWN_JOB = """
    from workstealing import Job, Recruiter
    from workstealing.structures.access import ALWAYS, Access, JobAccess

    class DropDrafts(Job):
        name = "drop_drafts"
        access = JobAccess(more=Access(keys=("drafts:NAME",), commands=ALWAYS | {"ZPOPMIN"}))

        def perform(self, slice):
            return 0

    class Keypad(Job):
        name, access = "keypad", "by a code"

        def perform(self, slice):
            return 0

    recruiter = Recruiter()
    recruiter.install(DropDrafts(), rate=0.1)
    recruiter.install(Keypad(), rate=0.1)
"""


def test_a_job_of_ones_own_says_its_rights(command: Any, app_module: MakeApp) -> None:
    line = command("acl", "--app", app_module(OWN_JOB))
    assert " ~drafts:drop_drafts " in line
    assert " +zpopmin" in line
    assert "drop_drafts" not in command.err
    assert "job keypad names no structure: add what it needs" in command.err


def test_all_keys_are_told_of(command: Any) -> None:
    line = command("acl", "--structure", "durable_keys", "--name", "locks")
    assert " ~* " in line
    assert "give --keys" in command.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "no structure was named"),
        (
            ("--structure", "heap", "--name", "n"),
            "'heap' is not known: give one of durable_keys",
        ),
        (("--job", "sweeping", "--name", "n"), "'sweeping' is not known: give one of adopt_hashes"),
        (("--job", "ick_reaper"), "no name was given for the Ick"),
        (("--structure", "ick"), "no name was given for the Ick"),
        (("--structure", "ick", "--name", "n", "--user", "a b"), "is not usable"),
    ],
)
def test_wrong_use(command: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in command.refused("acl", *arguments)


@pytest.mark.real
@pytest.mark.parametrize("part", ["ledger", "dashboard", "doctor"])
def test_a_server_takes_the_lines_of_our_own_parts(
    command: Any, redis7: RedisServer, part: str
) -> None:
    line = command("acl", "--structure", part, "--user", part).strip()
    try:
        say_line(redis7.port, line.replace("PASSWORD", "secret"))
        url = f"redis://{part}:secret@127.0.0.1:{redis7.port}"
        if part == "doctor":
            said = command.json("doctor", "--url", url)
            assert {
                each["level"]
                for each in said["checks"]
                if each["what"]
                in {"server", "role", "eviction", "memory", "native", "clock", "round trip"}
            } == {"ok"}
        else:
            assert command.json("status", "--url", url)["is_well"] is not None
    finally:
        redis7.client().acl_deluser(part)


@pytest.mark.real
def test_a_ledger_and_a_job_work_under_their_lines(command: Any, redis7: RedisServer) -> None:
    arguments = ("--structure", "volatile_hashes", "--structure", "ledger", "--name", "own")
    line = command("acl", *arguments, "--keys", "k*", "--user", "shop").strip()
    try:
        say_line(redis7.port, line.replace("PASSWORD", "secret"))
        with connect(f"redis://shop:secret@127.0.0.1:{redis7.port}") as client:
            hashes = VolatileHashes(
                client, namespace="own", backend="emulated", clock_shift_ms=3_600_000
            )
            VolatileHashes(client, namespace="own", backend="emulated").hsetex("k", "f", "v", ex=9)
            recruiter: Recruiter = always(seconds=5.0)
            ledger = Ledger(client, "own")
            recruiter.add_hook(ledger)
            recruiter.install(HashFieldExpiry(hashes), rate=1.0)
            follow(recruiter, ledger)
            settings = SharedSettings(client, "own")
            settings.set_rate("hash_field_expiry.own", 1.0)
            settings.pause("hash_field_expiry.own")
            settings.resume("hash_field_expiry.own")
            assert recruiter.enlist().name == "WORKED"
            assert recruiter.enlist().name == "IDLE"
            assert ledger.flush(10.0)
            assert [each.recruited for each in total(read_ledger(client, "own")).values()] == [2]
            ledger.close(10.0)
            with pytest.raises(Exception, match="permission"):
                hashes.hset("other", "f", "v")
    finally:
        redis7.client().acl_deluser("shop")


@pytest.mark.real
def test_sentinels_have_users_of_their_own(
    command: Any, redis7: RedisServer, tmp_path: Path
) -> None:
    line = command("acl", "--structure", "sentinels", "--user", "watcher").strip()
    with sentinel_of(redis7, tmp_path) as port:
        say_line(port, line.replace("PASSWORD", "secret"))
        url = f"redis+sentinel://127.0.0.1:{port}/main?sentinel_username=watcher"
        url += "&sentinel_password=secret"
        with connect(url) as client:
            # The job asks a sentinel by itself, and the application by redis-py.
            hashes = VolatileHashes(client, "own", backend="emulated")
            assert HashFieldExpiry(hashes).perform(Slice(5, 30.0)) == 0
            hashes.hsetex("h", "f", "v", ex=9)
        found = command.json("doctor", "--url", url)["checks"]
        assert [each["level"] for each in found if each["what"] == "sentinel"] == ["ok"]
        with (
            redis.Redis(port=port, username="watcher", password="secret") as watcher,
            pytest.raises(NoPermissionError),
        ):
            watcher.execute_command("SENTINEL FAILOVER", "main")


MORE = """
    from workstealing import Fleet, Recruiter, connect
    from workstealing.jobs import (
        AdoptHashes, FleetRebalance, HashFieldExpiry, KeyExpiry, MigrateToNative, QueueExpiry,
    )
    from workstealing.structures import DurableKeys, ShuffleQueue, VolatileHashes

    client = connect("redis://127.0.0.1:1/0")
    nodes = {"a": client, "b": connect("redis://127.0.0.1:2/0")}
    hashes = VolatileHashes(client, namespace="items")
    on_fleet = Fleet(nodes, previous=["a"])
    recruiter = Recruiter()
    for job in (
        AdoptHashes(hashes, "old:*", ttl=60),
        HashFieldExpiry(hashes),
        MigrateToNative(hashes),
        KeyExpiry(DurableKeys(on_fleet, "locks")),
        FleetRebalance(VolatileHashes(on_fleet, "spread"), None),
        QueueExpiry(ShuffleQueue(client, "q", namespace="queues")),
    ):
        recruiter.install(job, rate=0.01)
"""


def test_jobs_bring_what_they_need_besides(command: Any, app_module: MakeApp) -> None:
    said = command.json("acl", "--app", app_module(MORE), "--keys", "k:*")
    assert "no rule" not in command.err
    found = {(each["kind"], each["name"]): set(each["commands"]) for each in said["structures"]}
    # The nodes of a fleet have one rule, of the namespace.
    assert sorted({name for _, name in found}) == ["items", "locks", "queues", "spread"]
    assert {"DUMP", "RESTORE"} <= found["durable keys", "locks"]
    assert {"DUMP", "RESTORE", "SCAN", "ZSCAN"} <= found["volatile hashes", "spread"]
    lines = [
        (each["kind"], set(each["commands"]))
        for each in said["structures"]
        if each["name"] == "items"
    ]
    assert len(lines) == 3
    adopting, expiring, migrating = (commands for _, commands in lines)
    assert {"SCAN", "HSCAN", "INFO"} <= adopting
    assert not {"SCAN", "DUMP", "HSETEX"} & expiring
    assert {"HSETEX", "HPEXPIREAT"} <= migrating
    for part in ("+dump", "+scan", "+hpexpireat", "~{*}:ws:queues:*", "~k:*"):
        assert part in said["line"].split()


def test_a_fleets_users_carry_keys(command: Any) -> None:
    arguments = ("acl", "--structure", "volatile_hashes", "--name", "n", "--keys", "k")
    assert "+restore" not in command(*arguments).split()
    assert "+restore" in command(*arguments, "--fleet").split()


@pytest.mark.real
class TestUnderThePrintedLine:
    def printed(self, command: Any, server: RedisServer, *arguments: str) -> Any:
        line = command("acl", *arguments, "--user", "shop").strip()
        say_line(server.port, line.replace("PASSWORD", "secret"))
        return connect(f"redis://shop:secret@127.0.0.1:{server.port}")

    @pytest.fixture(autouse=True)
    def gone(self, redis7: RedisServer, redis8: RedisServer) -> Iterator[None]:
        yield
        for each in (redis7, redis8):
            each.client().acl_deluser("shop")

    @pytest.mark.parametrize("native", [False, True])
    def test_results_of_functions_are_kept(
        self, command: Any, redis7: RedisServer, redis8: RedisServer, native: bool
    ) -> None:
        server, options = (redis8, ("--native",)) if native else (redis7, ())
        arguments = ("--structure", "volatile_hashes", "--name", "own", *options)
        # One key of the user's own, and no pattern: the leases lie beside it.
        with self.printed(command, server, *arguments, "--keys", "report") as client:
            hashes = VolatileHashes(client, namespace="own")
            calls = []

            @hashes.cached(ttl=60, key="report", stale=5, early=1.0)
            def report(day: int) -> int:
                calls.append(day)
                return 2 * day

            assert [report(4), report(4)] == [8, 8]
            assert calls == [4]
            assert report.invalidate(4)
            assert report.refresh(5) == 10
            assert hashes.open().is_native is native

    def test_a_dry_run_and_a_slice_of_an_adoption(self, command: Any, redis7: RedisServer) -> None:
        admin = redis7.client()
        admin.hset("hash:1", "f", "v")
        admin.zadd("zset:1", {"f": 4_000_000_000})
        arguments = (
            "--job",
            "adopt_hashes",
            "--name",
            "own",
            "--keys",
            "?ash:*",
            "--keys",
            "zset:*",
        )
        with self.printed(command, redis7, *arguments) as client:
            hashes = VolatileHashes(client, namespace="own", backend="emulated")
            job = AdoptHashes(hashes, "hash:*", sorted_sets="zset:*")
            assert job.report().fields == 1
            assert job.perform(Slice(10, 10.0)) == 1
            assert hashes.hexpiretime("hash:1", "f") == [4_000_000_000]
            job.restart()

    def test_an_audit_of_a_primary_and_its_replica(
        self, command: Any, start_redis: Callable[..., RedisServer]
    ) -> None:
        primary, replica = (start_redis(8, repl_diskless_sync_delay=0) for _ in range(2))
        admin, follower = primary.client(), replica.client()
        follower.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        link = "master_link_status"
        wait_until(lambda: follower.info("replication")[link] == "up", "the replica to follow")
        arguments = ("--job", "native_field_audit", "--name", "own", "--keys", "item:*")
        with (
            self.printed(command, primary, *arguments) as client,
            self.printed(command, replica, *arguments) as copy,
        ):
            hashes = VolatileHashes(client, "own", backend="native")
            for number in range(50):
                hashes.hsetex(f"item:{number}", "f", 1.0, ex=600)
                hashes.hincrbyfloat(f"item:{number}", "f", 0.5)
            admin.set("heard", "yes")
            wait_until(lambda: follower.get("heard") == b"yes", "the replica to hear")
            job, found = NativeFieldAudit(hashes, "item:*", copy, limit=100), 0
            # Redis 8.0 loses deadlines on its replicas; how many hashes a slice meets is chance.
            for _ in range(100):
                slice = Slice(100, 10.0)
                found = job.perform(slice)
                if found:
                    break
            assert found > 0
            assert slice.measured == {
                **dict.fromkeys(("fields_compared", "replica_differences"), float(found)),
                "kept_past_deadline": 0.0,
            }
            with pytest.raises(NoPermissionError):
                copy.hget("another", "f")

    def test_queues_are_deleted_by_the_names_that_are_given(
        self, command: Any, redis7: RedisServer
    ) -> None:
        queue = ShuffleQueue(redis7.client(), "orders", ttl=60)
        queue.write("t", {"a": "b"})
        later = ShuffleQueue(redis7.client(), "orders", ttl=60, clock_shift_ms=3_600_000)
        assert later.ack(later.read("g", "c"))
        arguments = ("--job", "queue_expiry", "--name", "shuffle_queues", "--keys", "orders*")
        with self.printed(command, redis7, *arguments) as client:
            job = QueueExpiry(ShuffleQueue(client, "orders", clock_shift_ms=7_200_000))
            assert sum(job.perform(Slice(100, 10.0)) for _ in range(5)) > 3
        # The receipt of the read ends by its own time to live.
        admin = redis7.client()
        assert [key for key in admin.keys("orders*") if admin.pttl(key) == -1] == []

    def test_fair_queues_are_deleted_by_the_names_that_are_given(
        self, command: Any, redis7: RedisServer
    ) -> None:
        queue = FairQueue(redis7.client(), "orders", ttl=60)
        queue.write("t", {"a": "b"}, tracking_id="x")
        assert queue.ack(queue.read("c"))
        arguments = ("--job", "queue_expiry", "--name", "fair_queues", "--keys", "orders*")
        with self.printed(command, redis7, *arguments) as client:
            job = QueueExpiry(FairQueue(client, "orders", clock_shift_ms=7_200_000))
            assert job.perform(Slice(100, 10.0)) > 3
        # The receipt of the read ends by its own time to live.
        admin = redis7.client()
        assert [key for key in admin.keys("orders*") if admin.pttl(key) == -1] == []

    def test_a_fair_queue_in_the_namespace_that_it_has_by_default(
        self, command: Any, redis7: RedisServer
    ) -> None:
        arguments = ("--job", "fair_queue_reaper", "--name", "orders")
        with self.printed(command, redis7, *arguments) as client:
            queue = FairQueue(client, "orders")
            queue.write("a", {"n": 1})
            assert queue.ack(queue.read("w")) == 1
            # The idle account, which no tag needs any more.
            assert FairQueueReaper(queue).perform(Slice(25, 10.0)) == 1
            queue.write("b", {"n": 2})
            assert queue.read("dead") is not None
            later = FairQueue(client, "orders", clock_shift_ms=61_000)
            # On a busy machine another account is idle by now.
            assert FairQueueReaper(later).perform(Slice(25, 10.0)) >= 1
            assert queue.read("w").attempts == 2

    def test_a_job_of_rules_removes_and_brings_back(
        self, command: Any, redis7: RedisServer
    ) -> None:
        admin = redis7.client()
        admin.sadd("conj:a", "gone", "there")
        admin.set("there", 1)
        admin.xgroup_create("orders", "mailers", mkstream=True)
        admin.xack("orders", "mailers", admin.xadd("orders", {"a": "b"}))
        ((_, entries),) = admin.xreadgroup("mailers", "m", {"orders": ">"})
        admin.xack("orders", "mailers", *(number for number, _ in entries))
        arguments = ("--job", "leftovers", "--name", "tidy", "--keys", "conj:*", "--keys", "orders")
        with self.printed(command, redis7, *arguments, "--keys", "gone", "--keys", "there") as own:
            job = TagSetLeftovers(own, name="tidy", dry_run=False, undo=60)
            assert job.perform(Slice(10, 10.0)) == 1
            assert admin.smembers("conj:a") == {b"there"}
            assert [each.member for each in undo(own, "tidy")] == [b"gone"]
            # Counting the entries takes rights of its own.
            looks = StreamLeftovers(own, "orders", name="tidy", most=5, age=600, idle=600)
            assert looks.backlog(60.0).count == 1
            stream = StreamLeftovers(own, "orders", name="tidy", dry_run=False)
            assert stream.perform(Slice(10, 10.0)) == 1
            assert not admin.xlen("orders")
            with pytest.raises(NoPermissionError):
                own.get("another")

    def test_a_member_that_the_user_may_not_read_fails_the_slice(
        self, command: Any, redis7: RedisServer
    ) -> None:
        """A refused key is no key without garbage."""
        redis7.client().sadd("conj:a", "gone")
        arguments = ("--job", "tag_set_leftovers", "--name", "tidy", "--keys", "item:*")
        with self.printed(command, redis7, *arguments) as own:
            job = TagSetLeftovers(own, name="tidy", dry_run=False, undo=60)
            with pytest.raises(NoPermissionError):
                job.perform(Slice(10, 10.0))
            with pytest.raises(NoPermissionError):
                job.backlog()

    def test_a_job_of_rules_in_an_app(
        self, command: Any, app_module: MakeApp, redis7: RedisServer
    ) -> None:
        name = app_module(
            f"""
            import redis
            from workstealing import Recruiter
            from workstealing.jobs import TagSetLeftovers
            recruiter = Recruiter()
            recruiter.install(TagSetLeftovers(redis.Redis.from_url({redis7.url!r})), rate=0.1)
            """
        )
        said = command.json("acl", "--app", name, "--keys", "conj:*")
        (part,) = said["structures"]
        assert (part["kind"], part["name"]) == ("tag_set_leftovers", "tag_set_leftovers")
        assert part["keys"] == ["{*}:ws:leftovers:tag_set_leftovers:*", "conj:*"]
        assert "job tag_set_leftovers reads conj:* and the keys that" in command.err

    def test_a_dashboard_shows_and_steers(self, command: Any, redis7: RedisServer) -> None:
        arguments = ("--structure", "dashboard", "--structure", "volatile_hashes")
        options = ("--name", "default", "--keys", "k*")
        with self.printed(command, redis7, *arguments, *options) as client:
            hashes = VolatileHashes(client, namespace="default")
            hashes.hsetex("k", "f", "v", ex=60)
            recruiter = Recruiter()
            recruiter.install(HashFieldExpiry(hashes, name="tidy"), rate=0.1)
            pages = make_app(recruiter, client, token=TOKEN).test_client()
            header = {"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"}
            view = json.loads(pages.get("/ws/view.json", headers=header).text)
            assert "could not be asked" not in str(view)
            assert [each["problem"] for each in view["structures"]] == [""]
            (tidy,) = view["jobs"]
            form = {"job": tidy["id"], "action": "pause", "sure": "yes"}
            assert pages.post("/ws/jobs", data=form, headers=header).status_code == 200
            assert SharedSettings(client).settings()["tidy"].paused
            # The count of wrong tokens is the fleet's.
            count = counted_by_fleet(client, "default")
            assert [count()[0], count()[0]] == [1, 2]
