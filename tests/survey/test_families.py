"""Names become families: real names of known programs, and names that would explode."""

from __future__ import annotations

import json
import random
import string
import uuid

import pytest

from workstealing.survey.families import Families, pattern_of, shape_of, shown
from workstealing.survey.owners import Owners

ONE = str(uuid.UUID(int=0x5F3A6745DDCC4EBEA23CC50959D61B0A))
MD5 = "d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize(
    ("key", "shape", "owner"),
    [
        (f"celery-task-meta-{ONE}", "celery-task-meta-<uuid>", "Celery (kombu)"),
        (f"{ONE}.reply.celery.pidbox", "<uuid>.reply.celery.pidbox", "Celery (kombu)"),
        ("_kombu.binding.celery", "_kombu.binding.celery", "Celery (kombu)"),
        ("unacked_index", "unacked_index", "Celery (kombu)"),
        (f"rq:job:{ONE}", "rq:job:<uuid>", "RQ"),
        (f"rq:worker:{MD5}", "rq:worker:<hex>", "RQ"),
        ("rq:wip:default", "rq:wip:default", "RQ"),
        ("conj:auth_user:id=17", "conj:auth_user:id=<n>", "cacheops"),
        (MD5, "<hex>", "-"),
        (
            f":1:views.decorators.cache.cache_page..GET.{MD5}.{MD5}.en-us.UTC",
            ":<n>:views.decorators.cache.cache_page..GET.<hex>.<hex>.en-us.UTC",
            "Django cache",
        ),
        (
            ":1:django.contrib.sessions.cache4x8k2j1h5g6f7d8s9a0q1w2e3r4t5y6u",
            ":<n>:django.contrib.sessions.cache<id>",
            "Django sessions",
        ),
        (
            ":1:django.contrib.sessions.cached_dbabcdefghijklmnopqrstuvwxyzabcdef",
            ":<n>:django.contrib.sessions.cached_db<id>",
            "Django sessions",
        ),
        ("huey.redis.app", "huey.redis.app", "Huey"),
        (f"huey.r.app.r:{ONE}", "huey.r.app.r:<uuid>", "Huey"),
        ("stat:processed:2026-11-23", "stat:processed:<date>", "Sidekiq"),
        ("web-1:4123:9f8e7d6c5b4a", "web-<n>:<n>:<hex>", "Sidekiq"),
        ("bull:mail:12", "bull:mail:<n>", "BullMQ"),
        ("spark:app-20261123120000-0001:rdd:7", "spark:app-<n>-<n>:rdd:<n>", "Spark"),
        (f"checkpoint:17:__empty__:{ONE}", "checkpoint:<n>:__empty__:<uuid>", "LangGraph"),
        ("sess:ucOCDS6Wt_2WILjBmNcxrxI9R8Fal6z0", "sess:<id>", "express-session"),
        ("LIMITER/127.0.0.1/api/100/1/minute", "LIMITER/<ip>/api/<n>/<n>/minute", "limits"),
        ("{user17}:cart", "{user<n>}:cart", "-"),
        ("MyService-Cache_V2-Something-Long", "MyService-Cache_V<n>-Something-Long", "-"),
        ("a\x1b[31m\x07b", "a<bytes>[<n>m<bytes>b", "-"),
    ],
)
def test_real_names(key: str, shape: str, owner: str) -> None:
    found = shape_of(key.encode())
    assert shown(found) == shape
    assert Owners().of(key.encode()) == owner


def test_bytes_that_are_no_text() -> None:
    assert shown(shape_of(b"\x80\x04\x95:entity")) == "<bytes>:entity"
    assert shown(shape_of(b"x" * 10_000)).endswith("<...>")


def test_own_keys_are_known(redis7: object) -> None:
    from workstealing.structures import VolatileHashes

    client = redis7.client()  # type: ignore[attr-defined]
    VolatileHashes(client, namespace="items", backend="emulated").hsetex("item:1", "a", 1, ex=60)
    owners = {key: Owners().of(key) for key in client.scan_iter()}
    assert owners.pop(b"item:1") == "-"
    assert set(owners.values()) == {"workstealing"}


def test_a_pattern_matches_the_names_of_its_shape() -> None:
    assert pattern_of(shape_of(f"a[1]*:{ONE}:x?".encode())) == r"a\[*\]\*:*:x\?"
    assert pattern_of(shape_of(f"{ONE}\x00{MD5}".encode())) == "*"


def _random_word(source: random.Random) -> str:
    return "".join(source.choices(string.ascii_lowercase, k=source.randint(4, 12)))


@pytest.mark.slow
def test_a_hundred_thousand_shapes_stay_a_few() -> None:
    source = random.Random(1)
    families = Families(most=1_000)
    most = 0
    for number in range(100_000):
        if number % 2:
            families.add(f"user:{_random_word(source)}:{_random_word(source)}".encode())
        else:
            families.add(f"{_random_word(source)}.{_random_word(source)}/{number}".encode())
        if number % 1_000 == 0:
            most = max(most, len(families), sum(1 for _ in families.shapes()))
    families.merge_rare()
    found = {shown(shape): each.keys for shape, each in families.shapes()}
    assert most <= 1_000
    assert sum(found.values()) == families.keys == 100_000
    assert found["user:<*>:<*>"] == 50_000
    assert found["<*>.<*>/<n>"] == 50_000


def test_any_characters_at_all_stay_bounded() -> None:
    source = random.Random(2)
    families = Families(most=500)
    for _ in range(20_000):
        families.add(bytes(source.choices(b"a1:.-{}\xff\x00_", k=30)))
        assert len(families) <= 500
    assert sum(each.keys for _, each in families.shapes()) == 20_000


@pytest.mark.slow
def test_large_families_keep_their_names_beside_an_explosion() -> None:
    source = random.Random(3)
    words = [_random_word(source) for _ in range(100)]
    families = Families(most=1_000)
    for number in range(40_000):
        if number % 2:
            families.add(f"{source.choice(words)}:item:{number}".encode())
        else:
            families.add(f"mail:{_random_word(source)}@{_random_word(source)}".encode())
    families.merge_rare()
    found = {shown(shape): each.keys for shape, each in families.shapes()}
    kept = [f"{word}:item:<n>" for word in words if f"{word}:item:<n>" in found]
    assert len(kept) >= 95
    assert sum(found[each] for each in kept) >= 19_000
    assert found["mail:<*>@<*>"] == 20_000


def test_a_rare_family_with_many_bytes_keeps_its_name() -> None:
    source = random.Random(4)
    families = Families()
    for number in range(10_000):
        everything = number == 1_234
        key = b"report:everything" if everything else f"report:{_random_word(source)}".encode()
        families.of(families.add(key)).note_size(key, 10**7 if everything else 100, 1.0)
    families.merge_rare()
    found = {shown(shape): each.largest[1] for shape, each in families.shapes()}
    assert set(found) == {"report:<*>", "report:everything"}
    assert found["report:everything"] == b"report:everything"


def test_ids_without_a_letter_are_of_the_family_of_their_siblings() -> None:
    source = random.Random(5)
    families = Families()
    for _ in range(3_000):
        families.add(f"image:{source.getrandbits(32):08x}".encode())
    assert len(families) > 1
    families.merge_rare()
    assert {shown(shape): each.keys for shape, each in families.shapes()} == {"image:<hex>": 3_000}


def test_the_state_brings_all_back() -> None:
    source = random.Random(6)
    families = Families(most=200)
    for number in range(3_000):
        shape = families.add(f"{_random_word(source)}:{number}:{_random_word(source)}".encode())
        families.of(shape).bytes.note(number, 2.0)
    state = json.loads(json.dumps(families.state()))
    again = Families.from_state(state, None)
    for each in (families, again):
        each.add(b"a:1:b")
        each.merge_rare()
    assert again.state() == families.state()
