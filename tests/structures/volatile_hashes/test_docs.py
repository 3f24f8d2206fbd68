"""docs/volatile_hashes.md says what is so."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from support.hash_checks import collect_all
from support.hash_differences import DIFFERENCES, as_table
from support.pages import running, text_of
from support.patience import left, patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer, wait_until
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

PAGE = text_of("docs/volatile_hashes.md")
HOUR = 3_600
HOUR_MS = HOUR * 1_000


def test_the_differences_are_those_that_the_machine_allows() -> None:
    (shown,) = re.findall(r"<!-- differences: [^>]+ -->\n(.*)\n<!-- end -->", PAGE, re.DOTALL)
    assert shown == as_table()
    assert all(hasattr(VolatileHashes, name) for d in DIFFERENCES for name in d.commands)


def test_every_method_is_named() -> None:
    (paragraph,) = re.findall(r"## Commands\n\n(.*?)\n\n", PAGE, re.DOTALL)
    for name in re.findall(r"`(\w+)`", paragraph):
        assert name in ("decode_responses", "protocol") or hasattr(VolatileHashes, name), name


@pytest.mark.parametrize("version", [7, 8])
def test_the_code_runs(request: pytest.FixtureRequest, version: int) -> None:
    server: RedisServer = request.getfixturevalue(f"redis{version}")
    computed: list[int] = []

    def rate(item: int) -> float:
        computed.append(item)
        return 4.5

    here = {"redis.Redis()": "of_the_test"}
    with running("docs/volatile_hashes.md", replace=here) as page:
        scope = page.run(replies=3, of_the_test=server.client())
        page.run(rating_in_the_database=rate)
        assert computed == [17]
        assert scope["rating"](17) == 4.5
        page.run()
    assert scope["likes"][17] == [b"42"]
    assert (scope["visits"], scope["mine"]) == (1, 1)
    scope["items"].client.flushall()


# What plain commands of others do.


@pytest.fixture
def pair(redis7: RedisServer) -> tuple[VolatileHashes, VolatileHashes]:
    """A namespace now, and two hours later."""
    now = VolatileHashes(redis7.client(), "n")
    now.hsetex("h", mapping={"f": "old", "g": "old"}, ex=HOUR)
    return now, VolatileHashes(redis7.client(), "n", clock_shift_ms=2 * HOUR_MS)


Pair = tuple[VolatileHashes, VolatileHashes]


def test_a_plain_hset_leaves_the_old_deadline(pair: Pair) -> None:
    now, later = pair
    now.client.hset("h", "f", "new")
    assert now.hget("h", "f") == b"new"
    assert now.httl("h", "f") == [left(HOUR)]
    assert later.hget("h", "f") is None


def test_a_plain_hset_after_the_deadline_is_garbage(pair: Pair) -> None:
    _, later = pair
    later.client.hset("h", "f", "new")
    assert later.hget("h", "f") is None
    assert collect_all(HashFieldExpiry(later)) == 2
    assert later.client.hget("h", "f") is None


def test_a_plain_hset_of_another_field_has_no_deadline(pair: Pair) -> None:
    _, later = pair
    later.client.hset("h", "other", "new")
    collect_all(HashFieldExpiry(later))
    assert later.hgetall("h") == {b"other": b"new"}
    assert later.httl("h", "other") == [-1]


def test_a_plain_hdel_leaves_a_deadline_that_is_cleared_away(pair: Pair) -> None:
    now, later = pair
    now.client.hdel("h", "f")
    assert now.hgetall("h") == {b"g": b"old"}
    assert (now.hlen("h"), now.httl("h", "f")) == (1, [-2])
    collect_all(HashFieldExpiry(later))
    assert later.client.keys("*:ttl:*") == []


@pytest.mark.parametrize("name", ["delete", "unlink"])
def test_a_plain_del_leaves_deadlines_that_harm_nobody(pair: Pair, name: str) -> None:
    now, later = pair
    getattr(now.client, name)("h")
    assert (now.exists("h"), now.hlen("h"), now.httl("h", "f")) == (0, 0, [-2])
    now.hset("h", "f", "new")
    assert now.httl("h", "f") == [-1]
    assert later.hget("h", "f") == b"new"
    assert now.client.keys("*:ttl:*") == []


def test_a_plain_rename_takes_the_fields_out_of_the_namespace(pair: Pair) -> None:
    now, later = pair
    now.client.rename("h", "h2")
    collect_all(HashFieldExpiry(later))
    assert later.hgetall("h2") == {b"f": b"old", b"g": b"old"}
    assert later.httl("h2", "f") == [-1]
    assert later.client.keys("*:ttl:*") == []


def test_the_latest_deadline_is_in_the_year_that_is_named(pair: Pair) -> None:
    now, _ = pair
    last = 2**46 - 1
    assert now.hpexpireat("h", last, "f") == [1]
    assert 1970 + last / 1000 / 86_400 / 365.2425 // 1 == pytest.approx(4199, abs=1)


def test_emulated_fields_survive_the_replay_that_native_ones_may_not(
    start_redis: Callable[..., RedisServer],
) -> None:
    assert "Emulated namespaces have none of them" in " ".join(PAGE.split())
    server = start_redis(8, appendonly="yes", appendfsync="always")
    hashes = VolatileHashes(server.client(), "n", backend="emulated")

    def keep() -> bool:
        hashes.hsetex("kept", mapping={"f": "v"}, px=1_000)
        hashes.hset("kept", "other", "v")
        return hashes.hpersist("kept", "f") == [1]

    # On a busy machine a second may have passed by then.
    wait_until(keep, "a field to be kept")
    hashes.hsetex("gone", mapping={"f": "v"}, px=1_000)
    hashes.hset("gone", "other", "v")
    wait_until(lambda: hashes.hget("gone", "f") is None, "the deadline to pass")
    server.restart()
    again = VolatileHashes(server.client(), "n", backend="emulated")
    assert again.hgetall("kept") == {b"f": b"v", b"other": b"v"}
    assert again.hgetall("gone") == {b"other": b"v"}
