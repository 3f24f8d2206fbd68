"""The one reader of layouts: whose a layout is, and which releases may read or write it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from itertools import product
from typing import Any

import pytest
import redis

from support.servers import RedisServer
from workstealing.errors import LayoutError
from workstealing.structures.layout import Kind, Versioned, read_pairs

KIND = Kind("boxes", "a Box", version=2)
KEY, CALLED = b"ws:box:layout:b", "the Box at b"
PAIRS = {"structure": "boxes", "version": 2, "readable_from": 1, "writable_from": 1, "size": 7}


def size_of(pairs: Mapping[str, str]) -> int:
    return int(pairs["size"])


def read(reply: Any) -> Versioned[int] | None:
    return read_pairs(KIND, KEY, CALLED, reply, size_of)


def changed(**fields: Any) -> dict[str, Any]:
    return {**PAIRS, **fields}


def without(field: str) -> dict[str, Any]:
    return {name: value for name, value in PAIRS.items() if name != field}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_any_clients_reply_is_read(flat: bool, as_bytes: bool) -> None:
    pairs = {k: str(v) for k, v in PAIRS.items()}
    reply: Any = {k.encode(): v.encode() for k, v in pairs.items()} if as_bytes else pairs
    if flat:
        reply = [each for pair in reply.items() for each in pair]
    assert read(reply) == Versioned(7, 2, True, CALLED)


def test_no_layout_is_none() -> None:
    assert read({}) is None
    assert read([]) is None


def test_what_a_kind_writes_down_is_its_own_to_read() -> None:
    fields = KIND.fields("size", 9)
    found = read(list(fields))
    assert found is not None
    assert (found.own, found.version, found.writable) == (9, 2, True)
    found.require_writable()


@pytest.mark.parametrize("version", [1, 2, 3, 99])
@pytest.mark.parametrize("readable_from", [1, 2, 3])
@pytest.mark.parametrize("writable_from", [1, 2, 3])
def test_the_rule_of_versions(version: int, readable_from: int, writable_from: int) -> None:
    layout = changed(version=version, readable_from=readable_from, writable_from=writable_from)
    if readable_from > KIND.version:
        with pytest.raises(LayoutError) as raised:
            read(layout)
        assert str(raised.value) == (
            f"the Box at b has layout version {version}, which this release (version 2) cannot"
            " read: upgrade workstealing"
        )
        return
    found = read(layout)
    assert found is not None
    assert found.own == 7
    if writable_from <= KIND.version:
        found.require_writable()
        return
    with pytest.raises(LayoutError) as raised:
        found.require_writable()
    assert str(raised.value) == (
        f"the Box at b has layout version {version}, which this release may read but not write:"
        " upgrade workstealing"
    )


def verdict_of_python(fields: Mapping[str, Any]) -> str:
    """Return the verdict of `read_pairs`: writable, readable or refused."""
    try:
        found = read(fields)
    except LayoutError:
        return "refused"
    assert found is not None
    return "writable" if found.writable else "readable"


# The rule as a script of a log or of a shuffle queue asks for it.
REFUSE_VERSION = """
local refused, is_only_readable = refuse_version(KEYS[1], ARGV[1], ARGV[2], ARGV[3] == 'reads')
return refused or (is_only_readable and 'readable' or 'writable')
"""


def verdict_of_lua(client: redis.Redis, fields: Mapping[str, Any]) -> str:
    """Return the verdict of `refuse_version`, which must be the same for readers and writers."""
    client.delete(KEY)
    client.hset(KEY, mapping={name: str(value) for name, value in fields.items()})
    script = files("workstealing.lua").joinpath("shared/layout.lua").read_text() + REFUSE_VERSION
    said: list[str] = []
    for use in ("reads", "writes"):
        try:
            reply = client.eval(script, 1, KEY, fields.get("version", ""), KIND.version, use)
            said.append(reply.decode())
        except redis.ResponseError as error:
            if not str(error).startswith("WSLAYOUT "):
                raise
            said.append("refused")
    reads, writes = said
    assert writes == ("writable" if reads == "writable" else "refused"), fields
    return reads


def test_lua_has_the_same_rule_of_versions(redis7: RedisServer) -> None:
    """Log and ShuffleQueue keep the versions among their facts, where a script judges them."""
    client = redis7.client()
    texts = (1, 2, 3, 10, "x")
    verdicts = set()
    for version, readable_from, writable_from in product((*texts, 99), texts, texts):
        fields = changed(version=version, readable_from=readable_from, writable_from=writable_from)
        verdict = verdict_of_python(fields)
        assert verdict_of_lua(client, fields) == verdict, fields
        verdicts.add(verdict)
    for field in ("readable_from", "writable_from"):
        assert verdict_of_lua(client, without(field)) == verdict_of_python(without(field))
    assert verdicts == {"writable", "readable", "refused"}


@pytest.mark.parametrize(
    "reply",
    [
        changed(structure="crates"),
        changed(version="two"),
        changed(readable_from=""),
        changed(writable_from="x"),
        changed(size="large"),
        *map(without, PAIRS),
    ],
)
def test_a_foreign_layout(reply: dict[str, Any]) -> None:
    with pytest.raises(LayoutError) as raised:
        read(reply)
    assert str(raised.value) == (
        "the key ws:box:layout:b does not hold the layout of a Box: use another name, or remove"
        " the key if it is not needed"
    )


def test_what_only_newer_releases_know_is_no_reason_to_call_it_foreign() -> None:
    with pytest.raises(LayoutError, match=r"version 3, which this release \(version 2\) cannot"):
        read(without("size") | {"version": 3, "readable_from": 3})
