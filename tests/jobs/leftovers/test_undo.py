"""`workstealing undo`: what a job of rules has removed comes back, byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import pytest
from redis.exceptions import ConnectionError, TimeoutError

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.rules import Fields, Past
from support.servers import AnyServer, RedisServer
from workstealing.cli import main
from workstealing.errors import Aborted, OutOfTime
from workstealing.jobs.family_leftovers import DeadTags
from workstealing.jobs.leftovers import Item, Leftovers, Rule, undoing
from workstealing.jobs.leftovers.job import RuleWalk
from workstealing.jobs.leftovers.removing import SideKeys
from workstealing.jobs.leftovers.undoing import (
    CAME_BACK,
    ENDED,
    GONE,
    OTHER,
    UNREADABLE,
    undo,
)
from workstealing.jobs.shared.key_walk import KeyShare
from workstealing.recruiting import Slice
from workstealing.store.job_client import job_client_of

pytestmark = [pytest.mark.contract, pytest.mark.real]


def removed(client: Any, *rules: Rule) -> None:
    """Remove all garbage of some rules, and keep it: each rule on each node in turn, no draws.

    On a busy machine a slice may be cut short, and a lap that has found little so is followed by a
    rest of a second or more; then the walks begin anew.
    """
    job = Leftovers(client, rules, name="job", dry_run=False, undo=600)
    for _ in range(20):
        for rule in job.rules:
            for node in job.job_client.nodes():
                walk = RuleWalk(job, rule, node, Slice(100, 10.0))
                with contextlib.suppress(Aborted, OutOfTime, TimeoutError):
                    walk.go(KeyShare(), dry_run=False)
        if not job.backlog(60.0).count:
            return
        job.restart()
    raise AssertionError(job.backlog(60.0))


def everything(client: Any) -> dict[bytes, Any]:
    return {key: client.dump(key) for key in client.scan_iter() if b":ws:" not in key}


@pytest.mark.slow
def test_keys_and_members_come_back(any_server: AnyServer) -> None:
    client = any_server.client()
    for number in range(30):
        client.hset(f"session:{number}", mapping={"ends": 1, "user": os.urandom(50)})
    client.pexpire("session:7", 5_000_000)
    client.hset("pool:h", mapping={"a": 0, "b": 1, b"\xff": 0})
    client.zadd("pool:z", {"a": 0, "b": 1})
    client.sadd("conj:{s}", "{s}1", "{s}2")
    before = everything(client)
    removed(client, Past(), Fields("hash"), Fields("zset"), DeadTags())
    assert len(everything(client)) == 2
    assert all(each.is_back for each in undo(client, "job", 500, dry_run=True))
    assert len(everything(client)) == 2
    found = list(undo(client, "job", 500))
    assert all(each.is_back for each in found), found
    assert len(found) == 30 + 2 + 1 + 2
    after = everything(client)
    assert set(after) == set(before)
    assert all(after[key] == before[key] for key in before if key.startswith(b"session:"))
    assert client.hgetall("pool:h") == {b"a": b"0", b"b": b"1", b"\xff": b"0"}
    assert client.zscore("pool:z", "a") == 0.0
    assert client.smembers("conj:{s}") == {b"{s}1", b"{s}2"}
    assert 4_900_000 < client.pttl("session:7") <= 5_000_000
    assert not list(undo(client, "job"))


def test_what_is_there_again_stays(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("session:a", "ends", 1)
    client.hset("session:b", "ends", 1)
    client.hset("pool:h", mapping={"a": 0, "b": 0, "c": 1})
    client.sadd("conj:a", "gone")
    removed(client, Past(), Fields("hash"), DeadTags())
    client.set("session:a", "another")
    client.hset("pool:h", "a", "another")
    client.set("conj:a", "another")
    assert len([*undo(client, "job", dry_run=True)]) == 5
    found = {(each.key, each.member): each.why for each in undo(client, "job")}
    assert found.pop((b"session:a", None)) == CAME_BACK
    assert found.pop((b"pool:h", b"a")) == CAME_BACK
    assert found.pop((b"conj:a", b"gone")) == OTHER
    assert set(found.values()) == {"back"}
    assert client.get("session:a") == b"another"
    assert client.hgetall("pool:h") == {b"a": b"another", b"b": b"0", b"c": b"1"}


def test_what_has_ended_meanwhile_stays_away(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("session:a", "ends", 1)
    client.expire("session:a", 300)
    removed(client, Past())
    (kept,) = client.scan_iter("*:kept")
    ((number, fields),) = client.xrange(kept)
    client.delete(kept)
    client.xadd(kept, {**fields, b"ends": 1_000}, id=number)
    (one,) = undo(client, "job")
    assert one.why == ENDED
    assert not client.exists("session:a")


def test_an_item_ends_when_it_would_have_however_long_ago_it_was_met(redis7: RedisServer) -> None:
    client = redis7.client()
    client.hset("session:a", "ends", 1)
    client.expire("session:a", 9_000)
    ends = client.expiretime("session:a")
    job = Leftovers(client, [Past()], name="job", dry_run=False, undo=60_000)
    met = client.time()[0] - 3_600.0
    job.remover.remove(Past(), [Item(b"session:a")], [b""], met, Slice(1, 30.0))
    assert not client.exists("session:a")
    assert [each.why for each in undo(client, "job")] == ["back"]
    assert abs(client.expiretime("session:a") - ends) <= 1


def test_the_last_removal_wins(redis7: RedisServer) -> None:
    client = redis7.client()
    for value in ("first", "second"):
        client.hset("session:a", mapping={"ends": 1, "user": value})
        removed(client, Past())
        Leftovers(client, [Past()], name="job").restart()
    assert [each.why for each in undo(client, "job")] == ["back", CAME_BACK]
    assert client.hget("session:a", "user") == b"second"


def test_the_command(redis7: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    client = redis7.client()
    client.hset("session:a\x1b[2J", "ends", 1)
    removed(client, Past())
    arguments = ["undo", "--job", "job", "--url", redis7.url]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["rule"] == "test.past"
    assert main([*arguments, "--since", "1h"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "1 back" in said
    assert main(arguments) == 0
    assert "nothing is kept of the job" in capsys.readouterr().out


NONSENSE: dict[str, dict[str, Any]] = {
    "no type": {"key": "x"},
    "another type": {"type": "list", "key": "x", "member": "m", "content": "c"},
    "no key": {"type": "key", "content": "{dump}", "ends": 0},
    "no end": {"type": "key", "key": "x", "content": "{dump}"},
    "an end that is none": {"type": "key", "key": "x", "content": "{dump}", "ends": "nan"},
    "an end too far": {"type": "key", "key": "x", "content": "{dump}", "ends": 2**60},
    "no content": {"type": "key", "key": "x", "ends": 0},
    "an empty content": {"type": "key", "key": "x", "content": "", "ends": 0},
    "a content that is none": {"type": "key", "key": "x", "content": "zz", "ends": 0},
    "a content that was changed": {"type": "key", "key": "x", "content": "{changed}", "ends": 0},
    "no member": {"type": "set", "key": "x"},
    "a member without content": {"type": "hash", "key": "x", "member": "m"},
    "a score that is none": {"type": "zset", "key": "x", "member": "m", "content": "abc"},
    "an endless score": {"type": "zset", "key": "x", "member": "m", "content": "nan"},
    "a score too great": {"type": "zset", "key": "x", "member": "m", "content": "1e999"},
    "a score too long": {"type": "zset", "key": "x", "member": "m", "content": "9" * 400},
    "a score too small": {"type": "zset", "key": "x", "member": "m", "content": "-1.5e-999"},
}


@pytest.mark.parametrize("fields", NONSENSE.values(), ids=NONSENSE)
def test_an_entry_that_cannot_be_read_holds_up_no_other(
    redis7: RedisServer, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """It raised behind newer ones that were back, and a content that was refused was lost."""
    client = redis7.client()
    client.hset("session:older", "ends", 1)
    removed(client, Past())
    (stream,) = client.scan_iter("*:kept")
    client.set("x", "some text")
    dump = client.dump("x")
    client.delete("x")
    dumps = {"{dump}": dump, "{changed}": dump[:3] + b"?" + dump[4:]}
    entry = {name: dumps.get(value, value) for name, value in fields.items()}
    number = client.xadd(stream, entry)
    client.hset("session:newer", "ends", 1)
    Leftovers(client, [Past()], name="job").restart()
    removed(client, Past())
    arguments = ["undo", "--job", "job", "--url", redis7.url]

    for dry_run in (True, False):
        before = everything(client)
        found = list(undo(client, "job", dry_run=dry_run))
        assert [each.is_back for each in found] == [True, False, True]
        assert [each.key for each in found if each.is_back] == [b"session:newer", b"session:older"]
        assert found[1].why == UNREADABLE
        assert number.decode() in found[1].problem
        assert stream.decode() in found[1].problem
        assert set(everything(client)) - set(before) == (
            set() if dry_run else {b"session:newer", b"session:older"}
        )
    assert [each for each, _ in client.xrange(stream)] == [number]

    client.delete("session:newer")
    for options in ([], ["--dry-run"]):
        assert main([*arguments, *options]) == 1
        said = capsys.readouterr().out
        assert "1 entry could not be read" in said
        assert number.decode() in said
    assert [each.why for each in undo(client, "job")] == [UNREADABLE]
    assert not client.exists("session:newer")
    assert client.xrange(stream) == [(number, {k.encode(): _raw(v) for k, v in entry.items()})]


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 3, -1, -9])
def test_a_content_that_the_server_refuses_is_kept(any_server: AnyServer, place: int) -> None:
    """Its entry was deleted behind the refused command, and a dry run listed it."""
    client = any_server.client()
    client.hset("session:a", "ends", 1)
    removed(client, Past())
    (stream,) = client.scan_iter("*:kept")
    ((number, fields),) = client.xrange(stream)
    client.delete(stream)
    content = bytearray(fields[b"content"])
    content[place] ^= 0xFF
    client.xadd(stream, {**fields, b"content": bytes(content)}, id=number)
    # fakeredis does not know RESTORE's ABSTTL, so a dry run cannot tell.
    for dry_run in (True, False) if any_server.is_real else (False,):
        assert [each.why for each in undo(client, "job", dry_run=dry_run)] == [UNREADABLE]
        assert client.xlen(stream) == 1
        assert not client.exists("session:a")


@pytest.mark.parametrize("score", ["0", "-0", "0e5", "inf", "-inf", "5e-324", "1.5", "1e+300"])
def test_each_score_of_a_server_comes_back(redis7: RedisServer, score: str) -> None:
    client = redis7.client()
    client.zadd("pool:z", {"b": 1})
    fields = {"type": "zset", "key": "pool:z", "member": "a", "content": score}
    client.xadd(SideKeys("job", job_client_of(client)).kept(b""), fields)
    assert [each.why for each in undo(client, "job")] == ["back"]
    assert client.zscore("pool:z", "a") == float(score)


@pytest.mark.parametrize("kind", ["key", "hash"])
def test_what_another_undo_has_brought_back_is_not_brought_back_again(
    redis7: RedisServer, kind: str
) -> None:
    """Deleted since by its owner, it came back by the page that this one had read before."""
    client = redis7.client()
    if kind == "key":
        for each in "ab":
            client.hset(f"session:{each}", "ends", 1)
        removed(client, Past())
    else:
        for each in "ab":
            client.hset(f"pool:{each}", mapping={"x": 0, "y": 1})
        removed(client, Fields("hash"))
    mine = undo(client, "job")
    assert next(mine).is_back
    later = [each.key for each in undo(redis7.client(), "job") if each.is_back]
    assert len(later) == 1
    client.delete(*later)
    assert [each.why for each in mine] == [GONE]
    assert not client.exists(*later)


def test_a_dry_run_lists_on_a_server_that_refuses_to_restore(redis7: RedisServer) -> None:
    """It raised the server's error, though it changes nothing."""
    client = redis7.client()
    client.hset("session:a", "ends", 1)
    removed(client, Past())
    rights = ["+@all", "-restore"]
    client.acl_setuser("reader", enabled=True, nopass=True, keys="*", commands=rights)
    reader = redis7.client(username="reader", password="x")
    client.config_set("maxmemory", 1)
    try:
        for each in (client, reader):
            assert [each.key for each in undo(each, "job", dry_run=True)] == [b"session:a"]
    finally:
        client.config_set("maxmemory", 0)
        client.acl_deluser("reader")
    (stream,) = client.scan_iter("*:kept")
    assert client.xlen(stream) == 1


def test_a_fault_says_how_much_is_back(
    redis7: RedisServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis7.client()
    for number in range(3):
        client.hset(f"session:{number}", "ends", 1)
    removed(client, Past())
    tried = undoing._bring_back
    calls = []

    def bring_back(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise ConnectionError("the server has gone")
        return tried(*args, **options)

    monkeypatch.setattr(undoing, "_bring_back", bring_back)
    assert main(["undo", "--job", "job", "--url", redis7.url]) == 2
    assert "after 2 items were put back" in capsys.readouterr().err


def test_an_entry_for_another_slot_cannot_be_read(cluster: Any) -> None:
    """It was an AssertionError."""
    client = cluster.client()
    client.hset("session:a", "ends", 1)
    removed(client, Past())
    (stream,) = client.scan_iter("*:kept")
    client.xadd(stream, {"type": "set", "key": "elsewhere", "member": "m", "content": ""})
    assert [each.why for each in undo(client, "job")] == [UNREADABLE, "back"]
    assert not client.exists("elsewhere")
