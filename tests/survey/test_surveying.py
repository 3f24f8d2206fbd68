"""Surveys of real servers: sizes, garbage, a stop at each page, and what a server refuses."""

from __future__ import annotations

import json
import random
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from support.many_owners import reply_of_celery
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.errors import ConfigurationError
from workstealing.jobs.leftovers.walk import Judging
from workstealing.jobs.stream_leftovers import EntriesBeyond
from workstealing.survey import Progress, Survey, report_of
from workstealing.survey.garbage import Judges
from workstealing.survey.scanning import LONGEST_BATCH, paced

DOCS = Path(__file__).resolve().parents[2] / "docs" / "survey.md"
READING = (
    *("+scan", "+sscan", "+zscan", "+hscan", "+type", "+pttl", "+memory|usage"),
    *("+object|idletime", "+object|refcount"),
    *("+exists", "+llen", "+lindex", "+sismember", "+hlen", "+hget", "+hmget", "+hexists"),
    *("+xinfo", "+xrange", "+xrevrange", "+xpending", "+xlen", "+zscore", "+zcount", "+zcard"),
    *("+zrange", "+scard", "+info", "+dbsize", "+time", "+ping", "+client|no-touch"),
    *("+hrandfield", "+srandmember", "+zrandmember", "+getrange", "+lrange"),
)


def quick(client: Any, **options: Any) -> Survey:
    """Return a survey without pauses."""
    return Survey(client, load=1.0, **options)


def surveyed(client: Any, **options: Any) -> dict[str, Any]:
    """Survey; return the result as JSON brings it."""
    survey = quick(client, **options)
    survey.run()
    found: dict[str, Any] = json.loads(json.dumps(report_of(survey, 100.0)))
    return found


def by_family(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the families by their names."""
    return {each["family"]: each for each in report["families"]}


def found_by(report: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return how sure each rule is, and how many items it has found."""
    return {
        one["rule"]: (one["kind"], one["items"])
        for each in report["families"]
        for one in each["findings"]
        if one["items"]
    }


def fill(client: Any) -> None:
    """Write garbage of several owners, and what lives."""
    with client.pipeline(transaction=False) as pipe:
        for number in range(400):
            pipe.set(f"page:{number}", "x" * 50, ex=600 if number < 200 else None)
            pipe.sadd("conj:shop:id=1", f"page:{number + 200}")
        pipe.sadd("rq:workers", "rq:worker:gone", "rq:worker:lives")
        pipe.hset("rq:worker:lives", mapping={"birth": "now", "version": "2.12.0"})
        for number in range(30):
            asker = str(uuid.UUID(int=number))
            pipe.rpush(f"{asker}.reply.celery.pidbox", reply_of_celery(asker))
            pipe.zadd(f"limit:{number}", {"old": time.time() - 90_000, "new": time.time()})
            pipe.xadd("orders", {"n": number})
        pipe.hset("unacked", "tag", "[]")
        pipe.execute()
    client.xgroup_create("orders", "mailers", id="0")
    reply = client.xreadgroup("mailers", "one", {"orders": ">"}, count=20)
    client.xack("orders", "mailers", *(number for number, _ in reply[0][1]))


def test_the_garbage_of_several_owners(redis8: AnyServer) -> None:
    fill(redis8.client())
    report = surveyed(redis8.client())
    assert found_by(report) == {
        "tags.dead_members": ("certain", 200),
        "rq.dead_workers": ("likely", 1),
        "celery.replies": ("likely", 30),
        "celery.unacked": ("reported", 1),
        "streams.acknowledged": ("likely", 20),
        "families.old_scores.seconds": ("if declared", 30),
        "families.without_ttl": ("no TTL", 200),
    }
    families = by_family(report)
    assert {name: each["owner"] for name, each in families.items()} == {
        "page:<n>": "-",
        "conj:shop:id=<n>": "cacheops",
        "rq:workers": "RQ",
        "rq:worker:lives": "RQ",
        "<uuid>.reply.celery.pidbox": "Celery (kombu)",
        "limit:<n>": "-",
        "orders": "-",
        "unacked": "Celery (kombu)",
    }
    assert families["rq:workers"]["version"] == "2.12.0"
    assert families["page:<n>"]["without_ttl"] == [200, 200, 200]
    assert families["page:<n>"]["garbage"] == "none"
    assert families["orders"]["oldest_by"] == "stream id"
    assert families["conj:shop:id=<n>"]["garbage"] == "certain"
    tags = families["conj:shop:id=<n>"]["findings"][0]
    assert tags["install"].startswith(
        "recruiter.install(TagSetLeftovers(client, 'conj:shop:id=*'), rate="
    )
    half = families["conj:shop:id=<n>"]["bytes"][0] / 2
    assert tags["bytes"][0] == pytest.approx(half)
    assert 0 < tags["rate"] <= 1
    assert tags["seconds"] > 0
    # Two sightings lie an hour apart.
    assert families["<uuid>.reply.celery.pidbox"]["findings"][0]["seconds"] > 3_600
    old = families["limit:<n>"]["findings"][0]
    assert "window=<WINDOW>" in old["install"]
    assert old["declares"] == "window=1 d"


def test_the_installed_lines_are_python(redis8: AnyServer) -> None:
    """Each line runs once a user has filled in what stands in <>, and removes what was told."""
    from workstealing import Recruiter
    from workstealing.jobs import (
        CeleryLeftovers,
        FamilyLeftovers,
        Leftovers,
        RqLeftovers,
        StreamLeftovers,
        TagSetLeftovers,
    )
    from workstealing.jobs.family_leftovers import OldScores

    client = redis8.client()
    fill(client)
    report = surveyed(client)
    jobs = (CeleryLeftovers, FamilyLeftovers, Leftovers, RqLeftovers, StreamLeftovers)
    names = {each.__name__: each for each in (*jobs, TagSetLeftovers, OldScores)}
    seen = 0
    for family in report["families"]:
        for each in family["findings"]:
            if not each["install"]:
                continue
            line, removes = (
                each[name].replace("<WINDOW>", "86400").replace("<TTL>", "600")
                for name in ("install", "removes")
            )
            assert "<" not in line + removes
            one = Recruiter()
            exec(removes, {"recruiter": one, "client": client, **names})
            assert [job.dry_run for job in one.jobs().values()] == [False], removes
            recruiter = Recruiter()
            exec(line, {"recruiter": recruiter, "client": client, **names})
            (job,) = recruiter.jobs().values()
            assert job.dry_run, line
            assert each["kind"] == "likely" or job.backlog(60.0).count > 0, line
            seen += 1
    assert seen == 6


def test_a_prefix_of_celery_is_respected(redis8: AnyServer) -> None:
    client = redis8.client()
    asker = str(uuid.UUID(int=7))
    client.rpush(f"shop:{asker}.reply.celery.pidbox", reply_of_celery(asker))
    report = surveyed(client)
    (family,) = report["families"]
    installs = {each["install"].partition(", rate")[0] for each in family["findings"]}
    assert "recruiter.install(CeleryLeftovers(client, prefix='shop:')" in installs


def test_the_rules_of_libraries_are_asked(redis8: AnyServer) -> None:
    client = redis8.client()
    client.hset("huey.results.shop", f"r:{uuid.UUID(int=1)}", b"revoked")
    client.hset("huey.results.shop", str(uuid.UUID(int=2)), b"result")
    client.set(f"huey.r.mail.r:{uuid.UUID(int=3)}", b"revoked")
    report = surveyed(client)
    assert found_by(report) == {
        "huey.revocations": ("likely", 1),
        "huey.results": ("if declared", 1),
    }
    installs = " ".join(one["install"] for each in report["families"] for one in each["findings"])
    assert "HueyLeftovers(client, 'shop')" in installs
    assert "HueyLeftovers(client, 'shop', retention=<RETENTION>)" in installs
    assert "HueyLeftovers(client, 'mail', expiring=True)" in installs


def test_an_endless_stream_is_bounded_if_a_user_says_so(
    redis8: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EntriesBeyond, "asked", ({"pattern": "*", "most": 60},))
    client = redis8.client()
    for number in range(100):
        client.xadd("events", {"n": number})
    assert found_by(surveyed(client)) == {"streams.beyond": ("if declared", 40)}


@pytest.mark.slow
def test_a_large_tag_set_is_judged_by_some_of_its_members(
    redis8: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workstealing.survey import garbage

    monkeypatch.setattr(garbage, "MOST_MEMBERS", 2_000)
    client = redis8.client()
    client.sadd("conj:all", *(f"page:{number}" for number in range(20_000)))
    client.mset({f"page:{number}": 1 for number in range(0, 20_000, 4)})
    found = by_family(surveyed(client))["conj:all"]["findings"][0]
    assert found["items"] == pytest.approx(15_000, rel=0.06)
    assert not found["is_exact"]
    whole = by_family(surveyed(client, share=1.0))["conj:all"]["findings"][0]
    assert (whole["items"], whole["is_exact"]) == (15_000, True)


@pytest.mark.slow
def test_bytes_are_within_5_percent(redis8: AnyServer) -> None:
    client, source = redis8.client(), random.Random(1)
    with client.pipeline(transaction=False) as pipe:
        for number in range(40_000):
            pipe.set(f"page:{number}", "x" * int(source.lognormvariate(6, 1)))
        for number in range(6_000):
            fields = {str(each): "v" * 20 for each in range(source.randint(1, 40))}
            pipe.hset(f"cart:{number}", mapping=fields)
        for number in range(4_000):
            pipe.rpush(f"log:{number}", *["entry"] * min(300, int(source.paretovariate(1.1))))
        # One giant among small ones.
        pipe.rpush("log:4001", *["entry" * 20] * 4_000)
        pipe.execute()
    truth: dict[str, int] = {}
    keys = list(client.scan_iter(count=1_000))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.memory_usage(key, samples=0)
        for key, size in zip(keys, pipe.execute(), strict=True):
            name = f"{key.partition(b':')[0].decode()}:<n>"
            truth[name] = truth.get(name, 0) + size
    report = surveyed(client, random=source.random)
    found = by_family(report)
    assert set(found) == set(truth)
    for name, size in truth.items():
        value, low, high = found[name]["bytes"]
        assert value == pytest.approx(size, rel=0.05), name
        assert low <= value <= high
    assert found["page:<n>"]["measured"] < 30_000
    assert found["log:<n>"]["largest"]["key"] == "log:4001"
    assert report["keys"] == 50_001
    assert report["bytes"][0] == pytest.approx(sum(truth.values()), rel=0.05)


def test_a_cluster_is_surveyed_on_all_nodes(cluster: AnyServer) -> None:
    client = cluster.client()
    for number in range(600):
        client.set(f"page:{number}", "x", ex=600)
        client.sadd(f"{{{number}}}conj:tag", "page:no")
    for number in range(30):
        client.sadd(f"conj:{{tag{number}}}", f"{{tag{number}}}:alive", f"{{tag{number}}}:dead")
        client.set(f"{{tag{number}}}:alive", 1, ex=600)
        client.sadd(f"conj:other:{number}", "page:gone")
    report = surveyed(client)
    assert report["server"]["nodes"] == 3
    assert report["keys"] == report["server"]["keys"] == 1_290
    found = {name: each["findings"] for name, each in by_family(report).items()}
    (dead,) = found["conj:{tag<n>}"]
    assert (dead["kind"], dead["items"]) == ("certain", 30)
    # Keys of other slots cannot be watched, so nothing is said of them.
    (other,) = found["conj:other:<n>"]
    assert other["items"] == 0
    assert other["unknown"] > 0
    assert "hash slot" in other["why_unknown"]


@pytest.mark.slow
def test_a_slot_that_moves_ends_no_rule(redis8: AnyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = redis8.client()
    for number in range(2_000):
        client.sadd(f"conj:{number}", "gone")
    run, calls = Judging.run, [0]

    def moved(self: Judging, send: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:
            raise redis.exceptions.ResponseError("MOVED 3999 127.0.0.1:6381")
        return run(self, send)

    monkeypatch.setattr(Judging, "run", moved)
    report = surveyed(client)
    assert 1_000 < found_by(report)["tags.dead_members"][1] < 2_000
    assert [each for each in report["notes"] if "could not look at some keys: MOVED" in each]


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.slow
def test_a_survey_goes_on_after_a_stop_at_each_page(redis7: AnyServer, tmp_path: Path) -> None:
    client = redis7.client()
    fill(client)
    plain = surveyed(client)
    path = tmp_path / "state.json"
    pages = 0

    def killing(progress: Progress) -> None:
        # Before the page is written down: it is read again.
        nonlocal pages
        pages += 1
        if pages % 2:
            raise Killed

    for _ in range(100):
        survey = quick(client, path=path, progress=killing, save_seconds=0.0)
        survey._save = _not_at_the_end(survey._save)  # type: ignore[method-assign]
        for server in (survey.reader._server(None),):
            server.count = 10
        try:
            survey.run()
        except Killed:
            continue
        break
    assert pages > 20
    resumed = json.loads(json.dumps(report_of(survey, 100.0)))
    for each in (plain, resumed):
        for family in each["families"]:
            family["examples"] = family["oldest_seconds"] = None
            family["largest"]["key"] = ""
            for one in family["findings"]:
                one["seconds"] = one["seconds"] and round(one["seconds"], 3)
    assert resumed["keys"] == plain["keys"]
    assert resumed["families"] == plain["families"]
    assert path.stat().st_mode & 0o777 == 0o600
    survey.finish()
    assert not path.exists()


@pytest.mark.slow
def test_a_stop_within_a_page_counts_no_key_twice(
    redis7: AnyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    client.mset({f"page:{number}": 1 for number in range(2_000)})
    judge, calls = Judges.judge, [0]

    def dying(self: Judges, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] % 3 == 0:
            # As Ctrl-C does: the `finally` of the survey runs.
            raise KeyboardInterrupt
        judge(self, *arguments)

    monkeypatch.setattr(Judges, "judge", dying)
    for _ in range(100):
        survey = quick(client, path=tmp_path / "state", save_seconds=0.0)
        survey.reader._server(None).count = 20
        try:
            survey.run()
        except KeyboardInterrupt:
            continue
        break
    assert calls[0] > 10
    assert survey.families.keys == 2_000


def _not_at_the_end(save: Callable[..., None]) -> Callable[..., None]:
    """A killed process writes nothing in its `finally`."""

    def saved(*, at_once: bool = False) -> None:
        if not at_once:
            save()

    return saved


def test_a_state_of_another_survey_is_refused(
    redis7: AnyServer, redis8: AnyServer, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    quick(redis7.client(), path=path).run()
    with pytest.raises(ConfigurationError, match="of another server"):
        quick(redis8.client(), path=path).run()
    with pytest.raises(ConfigurationError, match="another --sample"):
        quick(redis7.client(), path=path, share=0.5).run()
    for text in ("{", "[]", '{"state": 99}', '{"state": 1}'):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="no state of a survey"):
            quick(redis7.client(), path=path).run()
        assert path.read_text() == text


def test_a_survey_begins_anew_if_the_server_did(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    server = start_redis(7)
    client = server.client()
    client.mset({f"page:{number}": 1 for number in range(3_000)})
    path = tmp_path / "state.json"

    def killing(progress: Progress) -> None:
        if progress.keys > 1_000:
            raise Killed

    with pytest.raises(Killed):
        quick(client, path=path, progress=killing).run()
    server.restart()
    again = server.client()
    again.mset({f"page:{number}": 1 for number in range(500)})
    report = surveyed(again, path=path)
    assert report["keys"] == 500
    assert any("started anew" in each for each in report["notes"])


@pytest.fixture
def reader(start_redis: Callable[..., RedisServer]) -> tuple[Any, Any]:
    """Two clients of one server: an admin's, and one of a user who may only read."""
    server = start_redis(8)
    admin = server.client()
    admin.acl_setuser("looks", enabled=True, passwords=["+pw"], keys=["*"], commands=[*READING])
    return admin, server.client(username="looks", password="pw")


def test_nothing_is_written_and_no_idle_time_begins_anew(reader: tuple[Any, Any]) -> None:
    admin, looker = reader
    fill(admin)

    def state() -> tuple[int, dict[bytes, Any]]:
        with admin.pipeline(transaction=False) as pipe:
            keys = sorted(admin.scan_iter())
            for key in keys:
                pipe.dump(key)
                pipe.pexpiretime(key)
            told = pipe.execute()
        return (
            admin.dbsize(),
            dict(zip(keys, zip(told[::2], told[1::2], strict=True), strict=True)),
            0,
        )

    admin.execute_command("CLIENT", "NO-TOUCH", "ON")
    before = state()
    # OBJECT IDLETIME counts whole seconds.
    time.sleep(2.1)
    report = surveyed(looker)
    idle = {key: admin.object("idletime", key) for key in before[1]}
    assert state() == before
    assert report["notes"] == []
    assert found_by(report)["celery.replies"] == ("likely", 30)
    assert min(idle.values()) >= 2, idle


@pytest.mark.parametrize("on", ["redis7", "redis8", "cluster"])
def test_a_shared_number_lends_no_key_its_age(on: str, request: pytest.FixtureRequest) -> None:
    """Small integers are objects of the server: they were idle before the key was there."""
    client = request.getfixturevalue(on).client()
    for number in range(50):
        client.set(f"{{{number}}}kept", "text")
    # OBJECT IDLETIME counts whole seconds.
    time.sleep(2.1)
    begun = time.monotonic()
    for number in range(600):
        client.set(f"{{{number}}}count:{number}", 7_001)
        client.set(f"{{{number}}}total:{number}", 7_002 if number % 2 else 10**9 + number)
    families = by_family(surveyed(client))
    at_most = time.monotonic() - begun + 1
    assert (families["{<n>}count:<n>"]["oldest_seconds"] or 0) <= at_most
    # What is not shared tells its age still.
    assert 0 <= families["{<n>}total:<n>"]["oldest_seconds"] <= at_most
    assert families["{<n>}kept"]["oldest_seconds"] >= 2


def test_only_a_string_that_may_be_the_oldest_is_asked_whether_it_is_shared(
    redis8: AnyServer,
) -> None:
    client = redis8.client()
    client.mset({f"page:{number}": "text" for number in range(3_000)})
    for number in range(100):
        client.rpush(f"list:{number}", "text")
    client.config_resetstat()
    survey = quick(client)
    survey.run()
    told = client.info("commandstats")
    assert told["cmdstat_object|idletime"]["calls"] == 3_100
    # One of a family and page, and some when a second passes.
    assert 1 <= told["cmdstat_object|refcount"]["calls"] < 300


def test_a_server_without_no_touch_is_said(start_redis: Callable[..., RedisServer]) -> None:
    client = start_redis(7).client()
    client.set("a", 1)
    (said,) = surveyed(client)["notes"]
    assert "no CLIENT NO-TOUCH" in said
    assert "noeviction" in said
    client.config_set("maxmemory-policy", "allkeys-lru")
    (said,) = surveyed(client)["notes"]
    assert "disturbs this server's eviction (allkeys-lru)" in said
    client.config_set("maxmemory-policy", "allkeys-lfu")
    report = surveyed(client)
    assert [each for each in report["notes"] if "no idle times" in each]
    assert report["families"][0]["oldest_seconds"] is None


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("-info", "INFO is refused"),
        ("-memory|usage", "MEMORY USAGE is refused"),
        ("-object|idletime", "OBJECT IDLETIME is refused"),
        ("-object|refcount", "OBJECT REFCOUNT is refused"),
        ("-client|no-touch", "there is no CLIENT NO-TOUCH"),
        ("-time", "TIME is refused"),
        ("-dbsize", "DBSIZE is refused"),
        ("-llen", "the rule celery.replies cannot look"),
    ],
)
def test_a_refused_command_costs_one_line(reader: tuple[Any, Any], without: str, said: str) -> None:
    admin, looker = reader
    fill(admin)
    admin.execute_command("ACL", "SETUSER", "looks", without)
    report = surveyed(looker)
    assert [each for each in report["notes"] if said in each], report["notes"]
    assert len(report["notes"]) == 1, report["notes"]
    assert report["keys"] == 465
    assert found_by(report)["tags.dead_members"] == ("certain", 200)
    size = by_family(report)["page:<n>"]["bytes"][0]
    assert (size > 0) == (without != "-memory|usage")


def test_the_rights_in_the_docs_suffice(start_redis: Callable[..., RedisServer]) -> None:
    (line,) = re.findall(r"^ACL SETUSER .*$", DOCS.read_text("utf-8"), re.MULTILINE)
    server = start_redis(8)
    admin = server.client()
    fill(admin)
    admin.execute_command(*line.replace("PASSWORD", "pw").split())
    report = surveyed(server.client(username="survey", password="pw"))
    assert report["notes"] == []
    assert found_by(report)["rq.dead_workers"] == ("likely", 1)
    # It can write nothing.
    for command in (("SET", "a", 1), ("DEL", "orders"), ("EVAL", "return 1", 0), ("FLUSHALL",)):
        with pytest.raises(redis.exceptions.NoPermissionError):
            server.client(username="survey", password="pw").execute_command(*command)


def test_without_scan_there_is_no_survey(reader: tuple[Any, Any]) -> None:
    admin, looker = reader
    admin.execute_command("ACL", "SETUSER", "looks", "-scan")
    with pytest.raises(ConfigurationError, match="needs SCAN"):
        quick(looker).run()


def test_the_load_is_kept(redis8: AnyServer) -> None:
    client = redis8.client()
    client.mset({f"page:{number}": "x" * 100 for number in range(3_000)})
    slept = [0.0]
    survey = Survey(client, load=0.05, sleep=slept.append)
    # The pauses are counted, and not waited for.
    survey.reader._monotonic = lambda: time.monotonic() + sum(slept)
    began = time.monotonic()
    survey.run()
    whole = time.monotonic() - began + sum(slept)
    assert len(slept) > 10
    assert 0 < survey.reader.seconds <= 0.05 * whole
    assert survey.reader.longest < 1.0


def test_a_server_that_answers_late_is_left_alone_for_longer() -> None:
    quiet, busy = paced(0.05), paced(0.05)
    for each in (quiet, busy):
        each.paid(0.0, 0.001, 0.002, 64)
    quiet.paid(1.0, 0.001, 0.002, 64)
    busy.paid(1.0, 0.001, 0.031, 64)
    assert quiet.next_at == pytest.approx(1.02)
    assert busy.next_at == pytest.approx(1.08)


@pytest.mark.parametrize("command", [2e-6, 10e-6])
def test_batches_are_cut_to_the_longest(command: float) -> None:
    pace = paced(0.05)
    for _ in range(60):
        pace.paid(0.0, pace.room * command, 0.01, pace.room)
    # Eight commands at the least, however slow they are.
    assert LONGEST_BATCH / 2 <= pace.room * command < max(LONGEST_BATCH * 1.5, 9 * command)


def test_a_page_of_names_is_cut_to_the_longest(
    redis8: AnyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis8.client().mset({f"page:{number}": 1 for number in range(20_000)})
    reader = quick(redis8.client()).reader

    def costly(node: Any, server: Any, commands: Any) -> list[Any]:
        # Each name costs 2 us; this server's own time says nothing.
        (reply,) = reader._send(node, commands)
        reader.seconds += server.count * 2e-6
        return [reply]

    monkeypatch.setattr(reader, "_batch", costly)
    cursor = b"0"
    for _ in range(30):
        cursor, _ = reader.scan(None, cursor)
    assert LONGEST_BATCH / 4 <= reader._server(None).count * 2e-6 <= LONGEST_BATCH


@pytest.mark.parametrize("wrong", [{"load": 0.0}, {"load": 1.5}, {"share": 0.0}, {"share": 2.0}])
def test_wrong_arguments(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="out of bounds"):
        Survey(redis.Redis(), **wrong)  # type: ignore[arg-type]
