"""A reservation comes as one text: members that look like its separators come as themselves."""

from __future__ import annotations

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from support.servers import AnyServer, RedisServer
from workstealing.store.operations import Operation
from workstealing.structures import Ick, ShardedIck
from workstealing.structures.ick.members import IckNames, ReservedMembers

HEAD = b"1700000000000000 1700000123456"
PIECES = [b"\n123456", b"\n123456\n", b"\n", b"123456", b"\n123456:", b"\n123456:\n123456\n", b"a"]
MEMBERS = st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"".join), unique=True)


def text_of(members: list[bytes]) -> bytes:
    """Return the text that holds members, each with its place as score."""
    parts = [HEAD]
    for i, member in enumerate(members):
        parts += [member, b"%d" % i + (b"\n123456:" if i % 8 == 7 else b"")]
    return b"\n123456\n".join(parts)


@given(MEMBERS)
def test_a_text_is_read_aright_or_the_members_are_asked_for(members: list[bytes]) -> None:
    reserved = ReservedMembers(IckNames("k"), "1700000000000000", text_of(members))
    steps = reserved.add(text_of(members), len(members))
    flat = [part for i, member in enumerate(members) for part in (member, b"%d" % i)]
    asked = next(steps, None)
    if asked is not None:
        assert isinstance(asked, Operation)
        assert asked.args == ("1700000000000000", 0, len(members))
        assert any(b"\n123456" in member for member in members)
        with pytest.raises(StopIteration):
            steps.send(flat)
    assert reserved.pairs() == [(member, float(i)) for i, member in enumerate(members)]
    assert reserved.count == len(members)


def likenesses(client: redis.Redis, seconds: int = 600) -> list[bytes]:
    """Return members that contain each separator of the next minutes."""
    now = int(client.time()[0]) * 1000
    each = [b"\n%06d\n" % ((now + ms) % 1_000_000) for ms in range(seconds * 1000)]
    return [b"%d" % i + b"".join(each[i::4]) for i in range(4)]


def test_members_that_contain_the_separator(any_server: AnyServer) -> None:
    client = any_server.client()
    odd = likenesses(client)
    ick: Ick = Ick(client, "k")
    ick.add({member: float(i) for i, member in enumerate([b"first", *odd, b"last"])})
    batch = ick.reserve(6)
    assert batch == [(member, float(i)) for i, member in enumerate([b"first", *odd, b"last"])]
    assert ick.exchange(3, *batch.members[:3]).members == batch.members[3:]
    assert ick.ack(*batch.members[3:]) == 3


def test_they_stand_in_a_later_piece_and_in_an_ick_shard(redis7: RedisServer) -> None:
    client = redis7.client(decode_responses=True)
    odd = [member.decode() for member in likenesses(client)]
    wanted = [(f"m{i:04}", float(i)) for i in range(1_500)] + [(m, 1500.0) for m in odd]
    ick: Ick = Ick(client, "k")
    sharded: ShardedIck = ShardedIck(client, "s", 1)
    ick.add(wanted)
    sharded.add(wanted)
    assert ick.reserve(2_000) == sorted(wanted, key=lambda pair: (pair[1], pair[0]))
    with sharded.lease("me") as leased:
        assert leased.reserve(2_000) == sorted(wanted, key=lambda pair: (pair[1], pair[0]))
