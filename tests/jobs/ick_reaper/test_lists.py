"""IckReaper and the list of a reservation: how little it reads of it, and what it makes of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import Ick

STALE = 500.0
HEAD = 30
OLD_MS = 1_000_000
"""The separator of a reservation's list is made from its time, modulo this."""


@pytest.fixture
def ick(any_server: AnyServer) -> Ick:
    made: Ick = Ick(any_server.client(), "k")
    return made


def held_of(ick: Ick) -> bytes:
    held = ick.client.get(ick.names.held)
    assert isinstance(held, bytes)
    return held


def age(ick: Ick) -> None:
    """Make what is reserved older by 1,000 seconds."""
    time = int(held_of(ick)[17:HEAD]) - OLD_MS
    ick.client.setrange(ick.names.held, 17, b"%013d" % time)


def separator_of(held: bytes) -> bytes:
    return b"\n" + held[HEAD - 6 : HEAD] + b"\n"


def milestone_of(held: bytes) -> bytes:
    return b"\n" + held[HEAD - 6 : HEAD] + b":"


def as_an_older_release_wrote_it(ick: Ick) -> None:
    """Take the milestones out of the list."""
    held = held_of(ick)
    ick.client.set(ick.names.held, held.replace(milestone_of(held), b""))


def as_an_older_release_reads_it(ick: Ick) -> list[bytes]:
    """Return the members that a reader finds who knows of no milestones and no masks."""
    held = held_of(ick)
    return held[HEAD:].split(separator_of(held))[1::2]


def reap(ick: Ick, limit: int = 5, **options: Any) -> int:
    return IckReaper(ick, STALE, **options).perform(Slice(limit, 60.0))


def sets(ick: Ick) -> tuple[set[bytes], set[bytes]]:
    client, names = ick.client, ick.names
    return set(client.zrange(names.pset, 0, -1)), set(client.zrange(names.cset, 0, -1))


def reserved(ick: Ick, members: dict[bytes, float]) -> None:
    ick.add(members)
    assert len(ick.reserve(len(members))) == len(members)
    age(ick)


def drain(ick: Ick, limit: int) -> list[int]:
    """Reap until nothing is reserved; return what the slices did."""
    done = []
    while ick.client.exists(ick.names.cset):
        done.append(reap(ick, limit))
        assert len(done) < 1000
    return done


def rows(n: int) -> dict[bytes, float]:
    return {b"document:%d" % i: 1763646000.123 + 1.7 * i for i in range(n)}


def one_score(n: int) -> dict[bytes, float]:
    return {b"document:%d" % i: 5.0 for i in range(n)}


def scores_like_members(n: int) -> dict[bytes, float]:
    return {b"%d" % i: float(i + 1) for i in range(n)}


def anything(n: int) -> dict[bytes, float]:
    """Members of all bytes and lengths, many of one beginning, with scores of all sizes."""
    rng = random.Random(20_261_120)
    scores = [float("inf"), -float("inf"), 0.0, -1.5, 1e300, 1763646000.5, 7.0]
    found: dict[bytes, float] = {b"": 3.0, b"\n": 3.0, b"\x8a": 3.0, b"a\n": 3.0}
    while len(found) < n:
        member = rng.choice([b"", b"same:", b"\xff" * 30]) + rng.randbytes(rng.randrange(1, 40))
        found[member] = rng.choice([*scores, rng.uniform(-1e9, 1e9)])
    return found


@pytest.mark.parametrize("made", [rows, one_score, scores_like_members, anything])
class TestEveryMemberIsFound:
    N = 700

    def test_by_one_slice_of_all(self, ick: Ick, made: Any) -> None:
        members = made(self.N)
        reserved(ick, members)
        assert reap(ick, self.N) == self.N
        assert sets(ick) == (set(members), set())
        # What is not listed would have been noted, and returned later.
        assert ick.client.exists(ick.names.seen) == 0
        assert len(held_of(ick)) == HEAD

    @pytest.mark.slow
    def test_in_a_longer_list(self, ick: Ick, made: Any) -> None:
        reserved(ick, made(6000))
        backlog = IckReaper(ick, STALE).backlog(60.0, most_members=6000)
        assert (backlog.count, backlog.exact) == (6000, True)

    def test_by_slices_of_some(self, ick: Ick, made: Any) -> None:
        members = made(self.N)
        reserved(ick, members)
        assert drain(ick, 100) == [100] * 7
        assert sets(ick) == (set(members), set())
        assert ick.client.exists(ick.names.seen) == 0

    def test_in_the_list_of_an_older_release(self, ick: Ick, made: Any) -> None:
        members = made(self.N)
        reserved(ick, members)
        as_an_older_release_wrote_it(ick)
        assert drain(ick, 100) == [100] * 7
        assert sets(ick) == (set(members), set())

    def test_and_an_older_release_finds_the_others(self, ick: Ick, made: Any) -> None:
        members = made(self.N)
        reserved(ick, members)
        listed = as_an_older_release_reads_it(ick)
        assert set(listed) == set(members)
        assert reap(ick, 100) == 100
        returned, left = sets(ick)
        assert len(returned) == 100
        for before, after in zip(listed, as_an_older_release_reads_it(ick), strict=True):
            # An empty member has no byte to change; its score has.
            assert (after == before) == (before in left or before == b"")


class TestMasks:
    def again_by_ruby(self, ick: Ick, member: str, score: float) -> None:
        """Move a member as Ruby's reserve does, which leaves our reservation's list alone."""
        assert ick.client.zrem(ick.names.pset, member) == 1
        ick.client.zadd(ick.names.cset, {member: score})

    @pytest.mark.parametrize("is_old", [False, True], ids=["ours", "older"])
    @pytest.mark.parametrize("member", ["document:0", "document:7", "document:19"])
    def test_a_returned_member_is_not_listed_any_more(
        self, ick: Ick, member: str, is_old: bool
    ) -> None:
        ick.add({f"document:{i}": i for i in range(20)})
        ick.reserve(20)
        age(ick)
        if is_old:
            as_an_older_release_wrote_it(ick)
        score = float(member.removeprefix("document:"))
        others = {f"document:{i}".encode() for i in range(20)} - {member.encode()}
        # Return this one alone.
        ick.client.zrem(ick.names.cset, *others)
        ick.client.zadd(ick.names.cset, {"keeps": 1})
        assert reap(ick) == 1
        assert member.encode() in sets(ick)[0]
        self.again_by_ruby(ick, member, score)
        # The reservation is as stale as it was, but Ruby's begins now: it is noted.
        assert ick.client.hget(ick.names.seen, member) is None
        assert [reap(ick), reap(ick)] == [0, 0]
        assert ick.client.hget(ick.names.seen, member) is not None
        assert member.encode() in sets(ick)[1]

    def test_a_member_with_another_score_was_reserved_by_somebody_else(self, ick: Ick) -> None:
        ick.add({"a": 1, "b": 2})
        ick.reserve(2)
        age(ick)
        ick.client.zadd(ick.names.cset, {"a": 0.5})
        assert reap(ick) == 1
        assert sets(ick) == ({b"b"}, {b"a"})
        assert ick.client.hkeys(ick.names.seen) == [b"a"]

    def test_the_next_reservation_lists_them_all_again(self, ick: Ick) -> None:
        members = rows(60)
        reserved(ick, members)
        assert reap(ick, 30) == 30
        late = ick.ack(*members)
        assert (late, late.ignored) == (0, 60)
        assert set(ick.reserve(60).members) == set(members)
        assert reap(ick) == 0
        age(ick)
        assert drain(ick, 30) == [30, 30]

    def test_two_reapers_differ_though_they_look_at_all(self, ick: Ick) -> None:
        """A look at few must not end at the first ones that it finds listed."""
        reserved(ick, rows(12))
        job = IckReaper(ick, STALE, dry_run=True)
        assert job.backlog().count == 12
        returned = set()
        for turn in range(12):
            numbers = random.Random(turn)
            ick.reserve(12, backwash=True)
            age(ick)
            reap(ick, 1, random=numbers.random)
            returned |= sets(ick)[0]
        assert len(returned) > 1


class TestWhatBreaksAList:
    """Whatever is not where it belongs is noted first: it takes longer, and nothing is lost."""

    def in_the_end_all_is_returned(self, ick: Ick, members: dict[bytes, float]) -> None:
        for _ in range(1000):
            if not ick.client.exists(ick.names.cset):
                break
            reap(ick, 300)
            for member, seen in ick.client.hgetall(ick.names.seen).items():
                time, score = seen.split(b" ")
                if int(time) > 1_700_000_000_000:
                    ick.client.hset(ick.names.seen, member, b"%d %s" % (10**12, score))
        assert sets(ick) == (set(members), set())

    def test_an_older_release_has_listed_more_than_is_read_in_one_piece(self, ick: Ick) -> None:
        members = rows(1500)
        reserved(ick, members)
        as_an_older_release_wrote_it(ick)
        assert reap(ick, 5) <= 5
        self.in_the_end_all_is_returned(ick, members)

    def test_an_older_reaper_has_cut_out_entries(self, ick: Ick) -> None:
        """It cuts out a milestone with the entry whose score it takes it for."""
        members = rows(300)
        reserved(ick, members)
        held = held_of(ick)
        between = separator_of(held)
        parts = held[HEAD:].split(between)[1:]
        entries = [between.join(parts[i : i + 2]) for i in range(0, len(parts), 2)]
        left = [entry for number, entry in enumerate(entries) if number % 8 or number % 3]
        ick.client.set(ick.names.held, held[:HEAD] + b"".join(between + e for e in left))
        self.in_the_end_all_is_returned(ick, members)

    def test_members_longer_than_what_is_read(self, ick: Ick) -> None:
        members = {b"%d:" % i + b"x" * 30_000: float(i) for i in range(40)}
        reserved(ick, members)
        self.in_the_end_all_is_returned(ick, members)

    def test_a_list_out_of_order(self, ick: Ick) -> None:
        members = rows(300)
        reserved(ick, members)
        held = held_of(ick)
        between = separator_of(held) + b"document:"
        first, *entries = held.split(between)
        random.Random(5).shuffle(entries)
        ick.client.set(ick.names.held, first + b"".join(between + entry for entry in entries))
        self.in_the_end_all_is_returned(ick, members)

    def test_noise(self, ick: Ick) -> None:
        members = rows(300)
        reserved(ick, members)
        held = bytearray(held_of(ick))
        rng = random.Random(6)
        for _ in range(300):
            held[rng.randrange(HEAD, len(held))] = rng.randrange(256)
        ick.client.set(ick.names.held, bytes(held))
        self.in_the_end_all_is_returned(ick, members)


@pytest.mark.real
class TestHowMuchIsRead:
    """A slice of a large reservation costs about what one of a small reservation does."""

    N = 20_000
    MOST_BYTES = 400_000

    @pytest.fixture
    def large(self, redis7: RedisServer) -> Ick:
        ick: Ick = Ick(redis7.client(), "k")
        ick.add({f"{i:060d}": 1763646000.123 + i for i in range(self.N)})
        ick.reserve(self.N)
        age(ick)
        assert len(held_of(ick)) > 1_800_000
        return ick

    def look_on(self, ick: Ick) -> tuple[int, list[list[str]]]:
        """Reap once; return how many were, and what the scripts sent to the reservation."""
        commands = []
        with ick.client.monitor() as monitor:
            done = reap(ick)
            ick.client.echo("done")
            while (line := monitor.next_command())["command"] != "ECHO done":
                if line["client_type"] == "lua":
                    commands.append(line["command"].split(" "))
        assert len(commands) < 400
        return done, [parts for parts in commands if parts[1:2] == [ick.names.held.decode()]]

    def bytes_read(self, commands: list[list[str]]) -> int:
        assert {parts[0] for parts in commands} <= {"GETRANGE", "SETRANGE", "STRLEN"}
        return sum(int(c[3]) - int(c[2]) + 1 for c in commands if c[0] == "GETRANGE")

    def test_of_two_megabytes(self, large: Ick) -> None:
        done, commands = self.look_on(large)
        assert done == 5
        assert self.bytes_read(commands) < self.MOST_BYTES
        # The token, and two bytes for each member.
        assert sum(parts[0] == "SETRANGE" for parts in commands) == 11
        assert large.client.strlen(large.names.held) > 1_800_000

    @pytest.mark.slow
    def test_when_most_of_them_have_been_returned(self, large: Ick) -> None:
        for limit in (*[3000] * 6, self.N - 18_010):
            assert reap(large, limit) == limit
        done, commands = self.look_on(large)
        assert done == 5
        assert self.bytes_read(commands) < self.MOST_BYTES

    def test_a_slice_of_any_limit_holds_the_server_for_short_scripts_alone(
        self, large: Ick
    ) -> None:
        before = large.client.info("commandstats")["cmdstat_eval"]["calls"]
        assert reap(large, 1_000) == 1_000
        # Each of them looks at 200, or returns as many.
        assert large.client.info("commandstats")["cmdstat_eval"]["calls"] - before == 2 * 5
        assert large.client.zcard(large.names.cset) == self.N - 1_000

    def test_of_what_an_older_release_has_reserved(self, large: Ick) -> None:
        as_an_older_release_wrote_it(large)
        done, commands = self.look_on(large)
        assert done <= 5
        assert self.bytes_read(commands) < 2 * self.MOST_BYTES
