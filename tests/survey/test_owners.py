"""Whose keys they are, said as surely as it is known, and what is never called garbage.

The keys are those that Flask-Session 0.8, limits 5.8, django-redis 7.0 and redis-om 1.2 have
written on a private server, and those of Sidekiq 6.4; only ids and values are shorter.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.jobs.stream_leftovers import AbandonedEntries
from workstealing.survey import Survey, report_of
from workstealing.survey.report import OWN_KEYS, ways

SESSION = "session:4IKXa5RD4ly5A21XrhYZR3yaioacSjfkPBik-NL3K"
ULID = "01M8C7N1FX5JWKKQSDWKGP5P"
JID = "b4a577edbccf1d805744efa9"


def surveyed(client: Any) -> dict[str, Any]:
    """Survey without pauses; return the result as JSON brings it."""
    survey = Survey(client, load=1.0)
    survey.run()
    found: dict[str, Any] = json.loads(json.dumps(report_of(survey, 100.0)))
    return found


def owners(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return each family's owner, and how sure it is."""
    return {each["family"]: (each["owner"], each["owner_certainty"]) for each in report["families"]}


def job_of_sidekiq(number: int) -> str:
    """Return a job as Sidekiq writes it into a queue."""
    return json.dumps({"retry": True, "class": "Mailer", "args": [number], "jid": JID})


@pytest.mark.parametrize("start", [b"\x82\xaa_permanent\xc3\xa1u\x01", b'{"_permanent":true}'])
def test_flask_session_is_known_by_what_it_writes(redis7: RedisServer, start: bytes) -> None:
    client = redis7.client()
    for number in range(30):
        client.set(f"{SESSION}{number:02}", start, ex=600)
        client.set(f"session:{number:043}", b"another program's", ex=600)
    found = owners(surveyed(client))
    assert found.pop("session:<id>") == ("Flask-Session", "certain")
    assert set(found.values()) == {("-", "")}


def test_sessions_of_two_programs_are_nobodys_for_certain(redis7: RedisServer) -> None:
    client = redis7.client()
    for number in range(40):
        mine = b'{"_permanent":true}' if number % 2 else b"another program's"
        client.set(f"{SESSION}{number:02}", mine, ex=600)
    assert owners(surveyed(client))["session:<id>"] in {("-", ""), ("Flask-Session", "probable")}


def test_limits_is_known_by_its_names(redis7: RedisServer) -> None:
    client = redis7.client()
    for user in range(20):
        client.set(f"LIMITS:LIMITER/fixed/u{user}/10/1/minute", 2, ex=60)
        client.rpush(f"LIMITS:LIMITER/moving/u{user}/10/1/hour", time.time())
        client.set(f"LIMITS:{{LIMITER/sliding/u{user}/10/1/day}}", 2, ex=60)
        client.set(f"LIMITS:{{LIMITER/sliding/u{user}/10/1/day}}/-1", 2, ex=60)
        client.set(f"LIMITS:of:{user}", 2, ex=60)
        client.zadd(f"LIMITS:LIMITER/zset/u{user}/10/1/minute", {"a": 1})
    found = owners(surveyed(client))
    ours = {name for name, of in found.items() if of == ("limits", "certain")}
    assert len(ours) == 4
    assert {name: of for name, of in found.items() if name not in ours} == {
        "LIMITS:of:<n>": ("-", ""),
        "LIMITS:LIMITER/zset/u<n>/<n>/<n>/minute": ("-", ""),
    }


def test_a_django_cache_is_only_probable_and_its_sessions_are_certain(redis7: RedisServer) -> None:
    client = redis7.client()
    for number in range(30):
        client.set(f":1:k{number}", b"\x80\x04\x95", ex=300)
        client.set(f":1:django.contrib.sessions.cache{number:032}", b"\x80\x04\x95", ex=300)
    found = owners(surveyed(client))
    assert found[":<n>:k<n>"] == ("Django cache", "probable")
    assert found[":<n>:django.contrib.sessions.cache<id>"] == ("Django sessions", "certain")


def test_sidekiq_is_known_by_its_jobs(redis7: RedisServer) -> None:
    client = redis7.client()
    client.sadd("queues", "mailers")
    client.rpush("queue:mailers", *map(job_of_sidekiq, range(30)))
    client.zadd("schedule", {job_of_sidekiq(1): time.time()})
    client.zadd("retry", {"not a job": 1})
    client.rpush("queue:own", "work", "more")
    found = owners(surveyed(client))
    assert found == {
        "queues": ("Sidekiq", "probable"),
        "queue:mailers": ("Sidekiq", "certain"),
        "schedule": ("Sidekiq", "certain"),
        "retry": ("-", ""),
        "queue:own": ("-", ""),
    }


def test_primary_data_and_work_are_never_offered_an_end(redis7: RedisServer) -> None:
    """redis-om's objects, other programs' work, and whatever may be a queue or a schedule."""
    client = redis7.client()
    for number in range(200):
        key = f"{ULID}{number % 10}{number // 10 % 10}"
        client.hset(f":shop.Customer{number // 100}:{key}", mapping={"pk": key, "name": "n"})
        client.rpush(f"work:{number}", "w")
        client.zadd(f"later:{number}", {"w": 9e12})
        client.hset(f"bull:mail:{number}", mapping={"name": "send", "data": "{}"})
        client.set(f"arq:job:{number}", "x")
        client.set(f":1:k{number}", "x")
        client.hset(f"user:{number}:profile", mapping={"name": "n"})
    report = surveyed(client)
    found = owners(report)
    assert {of for name, of in found.items() if "Customer" in name} == {("redis-om", "certain")}
    offered = {
        each["family"]: [one["kind"] for one in each["findings"]]
        for each in report["families"]
        if each["findings"]
    }
    # Nobody knows these. They stand below a heading of their own, and are called no garbage.
    assert offered == {"user:<n>:profile": ["no TTL"]}
    (way,) = ways(report)
    assert way["kinds"] == ["no TTL"]
    assert report["freed"]["likely"] == report["freed"]["certain"] == [0, 0, 0]


def test_a_hash_named_like_redis_oms_is_none_without_its_field(redis7: RedisServer) -> None:
    client = redis7.client()
    for number in range(30):
        client.hset(f":shop.Order:{ULID}{number:02}", mapping={"id": number})
    assert set(owners(surveyed(client)).values()) == {("-", "")}


def test_our_own_keys_are_one_family_without_offers(redis7: RedisServer) -> None:
    from workstealing.structures import ShuffleQueue, VolatileHashes

    client = redis7.client()
    for number in range(150):
        hashes = VolatileHashes(client, "items", backend="emulated")
        hashes.hsetex(f"item:{number}", mapping={"a": 1}, ex=600)
        ShuffleQueue(client, f"q{number}").write("tenant", {"a": "b"})
    report = surveyed(client)
    ours = [each for each in report["families"] if each["owner"] == "workstealing"]
    assert [each["family"] for each in ours] == [OWN_KEYS]
    assert ours[0]["keys"] == report["keys"] - 150
    assert ours[0]["findings"] == []
    assert owners(report)[OWN_KEYS] == ("workstealing", "certain")


def test_the_other_databases_are_named(redis7: RedisServer) -> None:
    client = redis7.client()
    client.set("a", 1)
    assert not [each for each in surveyed(client)["notes"] if "only database" in each]
    redis7.client(db=3).mset({"b": 1, "c": 2})
    report = surveyed(client)
    assert report["server"]["database"] == 0
    assert report["server"]["other_databases"] == {"3": 2}
    (said,) = [each for each in report["notes"] if "only database 0 was read" in each]
    assert "3 (2 keys)" in said
    other = surveyed(redis7.client(db=3))
    assert (other["server"]["database"], other["keys"]) == (3, 2)
    assert other["server"]["other_databases"] == {"0": 1}
    assert other["server"]["used_bytes"] > 0


def test_tag_sets_that_nobody_knows_are_hinted_at(redis7: RedisServer) -> None:
    client = redis7.client()
    for number in range(300):
        client.sadd(f"tags:{number % 10}", f"article:{number}")
        client.zadd(f"index:{number % 10}", {f"article:{number}": number})
        client.sadd(f"colours:{number % 10}", f"red{number}")
        if number % 3:
            client.set(f"article:{number}", "x", ex=600)
    hints = {each["family"]: each for each in surveyed(client)["hints"]}
    assert set(hints) == {"tags:<n>", "index:<n>"}
    for each in hints.values():
        assert each["looked_at"] == 160
        # A third of 160 is 53; beyond 20 and 90 it is once in a million times.
        assert 20 < each["gone"] < 90
    assert "TagSetLeftovers(client, 'tags:*')" in hints["tags:<n>"]["install"]
    assert "of_type='zset'" in hints["index:<n>"]["install"]


def test_entries_of_dead_consumers_are_hinted_at(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AbandonedEntries, "asked", ({"pattern": "*", "idle": 1.0},))
    client = redis7.client(protocol=2)
    client.xgroup_create("orders", "mailers", id="0", mkstream=True)
    for number in range(50):
        client.xadd("orders", {"n": number})
    client.xreadgroup("mailers", "dead", {"orders": ">"}, count=12)
    # The server counts how long a consumer is idle.
    time.sleep(1.1)
    report = surveyed(client)
    (found,) = [
        one
        for each in report["families"]
        for one in each["findings"]
        if one["rule"] == "streams.abandoned"
    ]
    assert (found["kind"], found["items"], found["unit"]) == ("reported", 12, "entries")
    assert found["install"] == found["removes"] == ""
    assert "XAUTOCLAIM" in found["finds"]
