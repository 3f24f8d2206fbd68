"""What readers leave in streams, with readers that are processes and are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import pytest
import redis

from support.children import in_child
from support.leftover_jobs import laps, to_the_end
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import AnyServer, RedisServer, wait_until
from workstealing.errors import ConfigurationError
from workstealing.jobs import StreamLeftovers
from workstealing.jobs.leftovers import Leftovers
from workstealing.jobs.stream_leftovers import (
    AcknowledgedEntries,
    EntriesBeyond,
    IdleConsumers,
    UnreadGroups,
)
from workstealing.recruiting import Slice
from workstealing.testing import assert_safe, refute

pytestmark = pytest.mark.real

_MATRIX = pytest.mark.matrix
THREE = ["redis7", *(pytest.param(each, marks=_MATRIX) for each in ("redis8", "valkey8"))]
_SERVERS = [
    "redis7",
    pytest.param("cluster", marks=pytest.mark.cluster),
    pytest.param("redis8", marks=_MATRIX),
    pytest.param("valkey8", marks=_MATRIX),
]


@pytest.fixture(params=_SERVERS)
def several(request: pytest.FixtureRequest) -> Any:
    """Each kind of server that runs scripts as Redis does."""
    return request.getfixturevalue(request.param)


def filled(client: Any, stream: str, entries: int, *groups: str) -> list[bytes]:
    """Append entries 1-0, 2-0, ... after making groups; return their ids."""
    for group in groups:
        client.xgroup_create(stream, group, id="0", mkstream=True)
    for first in range(1, entries + 1, 5_000):
        with client.pipeline(transaction=False) as block:
            for number in range(first, min(first + 5_000, entries + 1)):
                block.xadd(stream, {"n": number}, id=f"{number}-0")
            block.execute()
    return [b"%d-0" % number for number in range(1, entries + 1)]


def read(client: Any, stream: str, group: str, consumer: str, count: int) -> list[bytes]:
    """Read entries for a consumer of a group; return their ids."""
    found: Any = client.xreadgroup(group, consumer, {stream: ">"}, count=count)
    pages = found.values() if isinstance(found, dict) else [page for _, page in found]
    return [number for page in pages for number, _ in _entries(page)]


def _entries(page: Any) -> Any:
    # RESP3 wraps the entries of each stream once more.
    return page[0] if page and isinstance(page[0], list) else page


def ids(client: Any, stream: str) -> list[bytes]:
    return [number for number, _ in client.xrange(stream)]


def acknowledging(client: Any, pattern: str = "s*", groups: int = 1) -> Leftovers:
    rule = AcknowledgedEntries(pattern, groups)
    return Leftovers(client, [rule], name="read", dry_run=False)


class TestAcknowledgedEntries:
    @pytest.mark.slow
    def test_what_no_group_needs_goes(self, several: AnyServer) -> None:
        client = several.client()
        filled(client, "s", 500, "a", "b")
        given = read(client, "s", "a", "one", 400)
        client.xack("s", "a", *given)
        given = read(client, "s", "b", "one", 300)
        client.xack("s", "b", *(each for each in given if each != b"250-0"))
        lag = [each.get("lag") for each in client.xinfo_groups("s")]
        assert to_the_end(acknowledging(client)) == 249
        assert ids(client, "s")[0] == b"250-0"
        assert client.xlen("s") == 251
        assert [each.get("lag") for each in client.xinfo_groups("s")] == lag
        client.xack("s", "b", "250-0")
        assert to_the_end(acknowledging(client)) == 51
        assert ids(client, "s")[0] == b"301-0"
        client.xack("s", "b", *read(client, "s", "b", "one", 1000))
        client.xack("s", "a", *read(client, "s", "a", "one", 1000))
        assert to_the_end(acknowledging(client)) == 200
        assert client.xlen("s") == 0
        assert len(client.xinfo_groups("s")) == 2
        # The stream goes on where it was, and each group is given what comes.
        client.xadd("s", {"n": 501}, id="501-0")
        assert read(client, "s", "a", "one", 10) == [b"501-0"]

    @pytest.mark.parametrize("groups", [0, 1])
    def test_a_stream_with_too_few_groups_stays(self, redis7: RedisServer, groups: int) -> None:
        client = redis7.client()
        filled(client, "s", 50, *["a"][:groups])
        if groups:
            client.xack("s", "a", *read(client, "s", "a", "one", 50))
        assert laps(acknowledging(client, groups=groups + 1)) == 0
        assert client.xlen("s") == 50

    def test_a_group_made_later_is_given_all_that_is_left(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 300, "a")
        client.xack("s", "a", *read(client, "s", "a", "one", 200))
        client.xgroup_create("s", "late", id="0")
        assert laps(acknowledging(client)) == 0
        assert len(read(client, "s", "late", "one", 1000)) == 300

    def test_a_group_that_is_set_back_is_given_all_that_is_left(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 300, "a")
        client.xack("s", "a", *read(client, "s", "a", "one", 300))
        client.xgroup_setid("s", "a", "100-0")
        assert to_the_end(acknowledging(client)) == 100
        assert len(read(client, "s", "a", "one", 1000)) == 200

    def test_a_lag_that_the_server_does_not_know(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 300, "a")
        client.xack("s", "a", *read(client, "s", "a", "one", 150))
        client.xdel("s", "200-0")
        client.xgroup_setid("s", "a", "120-0")
        assert client.xinfo_groups("s")[0]["lag"] is None
        assert to_the_end(acknowledging(client)) == 120
        assert read(client, "s", "a", "one", 1000)[0] == b"121-0"

    def test_a_pending_entry_that_is_deleted_holds_its_place(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 300, "a")
        client.xack("s", "a", *read(client, "s", "a", "one", 200)[1:])
        client.xdel("s", "1-0")
        assert laps(acknowledging(client)) == 0
        client.xautoclaim("s", "a", "two", 0)
        assert to_the_end(acknowledging(client)) == 199

    @pytest.mark.slow
    @pytest.mark.parametrize("server", THREE)
    def test_a_hundred_thousand_entries_go_in_bounded_scripts(
        self, server: str, request: pytest.FixtureRequest
    ) -> None:
        client = request.getfixturevalue(server).client()
        filled(client, "s", 100_000, "a")
        while given := read(client, "s", "a", "one", 5_000):
            client.xack("s", "a", *given)
        client.xadd("s", {"n": "last"}, id="100001-0")
        job = acknowledging(client)
        slices = 0
        while (size := client.xlen("s")) > 1:
            removed = job.perform(Slice(1_000, 10.0))
            slices += 1
            assert removed == size - client.xlen("s")
            assert size - client.xlen("s") <= 1_000
            assert slices < 200
        assert ids(client, "s") == [b"100001-0"]

    @pytest.mark.slow
    def test_large_streams_do_not_keep_others_waiting(self, redis7: RedisServer) -> None:
        client = redis7.client()
        for stream in ("s1", "s2", "s3"):
            filled(client, stream, 3_000, "a")
            client.xack(stream, "a", *read(client, stream, "a", "one", 3_000))
        job = acknowledging(client)
        for turn in range(60):
            job.perform(Slice(1_000, 10.0))
            # Its owner is quicker than the recruits: this stream is never done.
            for number in range(300):
                client.xadd("s1", {"n": number}, id=f"{10_000 + turn}-{number + 1}")
            client.xack("s1", "a", *read(client, "s1", "a", "one", 300))
        assert client.xlen("s2") == client.xlen("s3") == 0


def consume(url: str, stream: str, name: str, done: str) -> None:
    """Read, note and acknowledge for ever, and take over what others left, until killed."""
    client = redis.Redis.from_url(url, protocol=2)
    while True:
        claimed = client.xautoclaim(stream, "g", name, min_idle_time=50, count=10)[1]
        fresh = client.xreadgroup("g", name, {stream: ">"}, count=10, block=20)
        for number, fields in [*claimed, *(fresh[0][1] if fresh else [])]:
            if fields:
                client.sadd(done, fields[b"n"])
            client.xack(stream, "g", number)


@pytest.mark.slow
@pytest.mark.parametrize("server", THREE)
def test_no_entry_is_lost_while_consumers_are_killed(
    server: str, request: pytest.FixtureRequest
) -> None:
    home: RedisServer = request.getfixturevalue(server)
    client = home.client()
    client.xgroup_create("s", "g", id="0", mkstream=True)
    job = StreamLeftovers(client, "s", idle=1, dry_run=False)
    sent, number, children = 0, 0, []
    try:
        for _ in range(3):
            number += 1
            name = f"c{number}"
            children.append(in_child(lambda name=name: consume(home.url, "s", name, "done")))
        for turn in range(60):
            for _ in range(20):
                sent += 1
                client.xadd("s", {"n": sent})
            with contextlib.suppress(Exception):
                job.perform(Slice(100, 10.0))
            if turn % 5 == 4:
                os.kill(children[0], signal.SIGKILL)
                os.waitpid(children.pop(0), 0)
                number += 1
                name = f"c{number}"
                children.append(in_child(lambda name=name: consume(home.url, "s", name, "done")))
            time.sleep(0.01)
        wait_until(lambda: client.scard("done") == sent, f"all {sent} entries are done", 60.0)
    finally:
        for each in children:
            os.kill(each, signal.SIGKILL)
            os.waitpid(each, 0)
    # What the killed ones had pending is taken over; then nothing holds an entry or a consumer.
    for each in client.xautoclaim("s", "g", "last", 0, count=1000)[1]:
        client.xack("s", "g", each[0])
    time.sleep(1.1)
    to_the_end(job)
    assert client.xlen("s") == 0
    assert client.xinfo_consumers("s", "g") == []


class TestIdleConsumers:
    @pytest.mark.slow
    def test_idle_ones_go_if_nothing_is_pending(self, several: AnyServer) -> None:
        client = several.client()
        filled(client, "s", 50, "g")
        read(client, "s", "g", "pending", 10)
        for name in ("idle", "idle too"):
            client.xgroup_createconsumer("s", "g", name)
        time.sleep(1.1)
        begun = time.monotonic()
        client.xack("s", "g", *read(client, "s", "g", "awake", 10))
        rule = IdleConsumers("s", 1)
        gone = to_the_end(Leftovers(client, [rule], name="idle", dry_run=False))
        names = {each["name"] for each in client.xinfo_consumers("s", "g")}
        # On a busy machine the one that was awake has fallen asleep by the end.
        if time.monotonic() - begun < 0.9:
            assert b"awake" in names
        assert names - {b"awake"} == {b"pending"}
        assert gone == 4 - len(names)
        assert client.xpending("s", "g")["pending"] == 10
        (audit,) = client.scan_iter("*:removed")
        removed = sum(int(entry[b"parts"]) for _, entry in client.xrange(audit))
        assert removed == gone

    def test_one_that_has_been_given_entries_since_stays(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 50, "g")
        client.xgroup_createconsumer("s", "g", "c")
        time.sleep(1.1)

        class Late(IdleConsumers):
            def verdict(self, item: Any) -> Any:
                verdict = yield from super().verdict(item)
                read(client, "s", "g", "c", 10)
                return verdict

        job = Leftovers(client, [Late("s", 1)], name="idle", dry_run=False)
        assert job.perform(Slice(100, 10.0)) == 0
        assert client.xpending("s", "g")["pending"] == 10

    @pytest.mark.parametrize("server", THREE)
    def test_one_that_waits_or_comes_back_loses_nothing(
        self, server: str, request: pytest.FixtureRequest
    ) -> None:
        home: RedisServer = request.getfixturevalue(server)
        client = home.client()
        client.xgroup_create("s", "g", id="0", mkstream=True)

        def wait() -> None:
            mine = redis.Redis.from_url(home.url, protocol=2)
            found: Any = mine.xreadgroup("g", "c", {"s": ">"}, count=1, block=60_000)
            mine.set("got", found[0][1][0][0])
            # It comes back for another one.
            again: Any = mine.xreadgroup("g", "c", {"s": ">"}, count=1, block=60_000)
            mine.set("got again", again[0][1][0][0])

        child = in_child(wait)
        try:
            wait_until(lambda: client.info("clients")["blocked_clients"] == 1, "it waits")
            time.sleep(1.1)
            job = Leftovers(client, [IdleConsumers("s", 1)], name="idle", dry_run=False)
            if client.xinfo_consumers("s", "g"):
                assert laps(job) == 1
            client.xadd("s", {"n": 1}, id="1-0")
            wait_until(lambda: client.get("got") == b"1-0", "it was given the entry")
            client.xadd("s", {"n": 2}, id="2-0")
            wait_until(lambda: client.get("got again") == b"2-0", "it was given the next one")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert client.xpending("s", "g")["pending"] == 2

    def test_many_go_a_hundred_at_a_time(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 1, "g")
        for number in range(350):
            client.xgroup_createconsumer("s", "g", f"c{number}")
        time.sleep(1.1)
        job = Leftovers(client, [IdleConsumers("s", 1)], name="idle", dry_run=False)
        left = [350]
        while left[-1]:
            job.perform(Slice(100, 10.0))
            left.append(len(client.xinfo_consumers("s", "g")))
            assert left[-2] - left[-1] <= 100
            assert len(left) < 100
        assert to_the_end(job) == 0

    def test_a_group_too_large_to_be_listed_is_unknown(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 1, "g")
        for number in range(12):
            client.xgroup_createconsumer("s", "g", f"c{number}")
        time.sleep(1.1)
        assert laps(Leftovers(client, [IdleConsumers("s", 1, most=11)], dry_run=False)) == 0
        assert len(client.xinfo_consumers("s", "g")) == 12

    def test_many_groups_are_not_asked_one_by_one(self, redis7: RedisServer) -> None:
        client = redis7.client()
        client.xadd("s", {"a": "b"})
        with client.pipeline(transaction=False) as pipe:
            for number in range(1_001):
                pipe.xgroup_create("s", f"g{number}")
                pipe.xgroup_createconsumer("s", f"g{number}", "idle")
            pipe.execute()
        time.sleep(1.1)
        for rule in (IdleConsumers("s", 1), UnreadGroups("s", 1)):
            one = Slice(10, 10.0)
            assert Leftovers(client, [rule], name=rule.name).perform(one) == 0
            assert one.operations < 20


class TestUnreadGroups:
    def test_they_are_counted_and_never_removed(self, redis7: RedisServer) -> None:
        client = redis7.client()
        filled(client, "s", 10, "unread", "read", "done")
        client.xack("s", "read", *read(client, "s", "read", "r", 10))
        client.xack("s", "done", *read(client, "s", "done", "r", 10))
        job = StreamLeftovers(client, "s", idle=1)
        rule = next(each for each in job.rules if isinstance(each, UnreadGroups))
        reports = Leftovers(client, [rule], name="reports")
        assert reports.perform(Slice(100, 10.0)) == 0
        time.sleep(2.1)
        reports.restart()
        assert reports.perform(Slice(100, 10.0)) == 1
        assert reports.backlog(60.0).count == 1
        real = Leftovers(client, [rule], name="reports", dry_run=False)
        assert laps(real) == 0
        assert real.backlog(60.0).count == 0
        assert len(client.xinfo_groups("s")) == 3
        # Somebody reads it again.
        read(client, "s", "unread", "r", 1)
        reports.restart()
        assert reports.perform(Slice(100, 10.0)) == 0


class TestEntriesBeyond:
    @pytest.mark.slow
    @pytest.mark.parametrize("most", [0, 1, 99, 100, 101, 250])
    def test_a_number(self, several: AnyServer, most: int) -> None:
        client = several.client()
        every = filled(client, "s", 1_350, "g")
        job = Leftovers(client, [EntriesBeyond("s", most=most)], name="bound", dry_run=False)
        assert to_the_end(job) == 1_350 - most
        assert ids(client, "s") == every[1_350 - most :]

    def test_an_age(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = 1000 * int(client.time()[0])
        ages = [*range(7_200, 3_700, -10), 3_500, 10, 0]
        for age in ages:
            client.xadd("s", {"n": age}, id=f"{now - 1000 * age}-0")
        filled(client, "other", 100)
        job = StreamLeftovers(client, "*", age=3_600, groups=9, dry_run=False)
        assert to_the_end(job) == len(ages) - 3
        assert [int(fields[b"n"]) for _, fields in client.xrange("s")] == [3_500, 10, 0]
        assert client.xlen("other") == 100

    def test_both(self, redis7: RedisServer) -> None:
        client = redis7.client()
        now = 1000 * int(client.time()[0])
        for number in range(500):
            client.xadd("s", {"n": number}, id=f"{now - 10_000_000 + number}-0")
        for number in range(50):
            client.xadd("s", {"n": number}, id=f"{now - 1000 + number}-0")
        rule = EntriesBeyond("s", most=30, age=3600)
        assert to_the_end(Leftovers(client, [rule], name="bound", dry_run=False)) == 520

    @pytest.mark.parametrize("wrong", [{}, {"most": -1}, {"age": 0}])
    def test_wrong_bounds(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match=r"most=|age="):
            EntriesBeyond("s", **wrong)


class TestRefuting:
    """The rules against the commands of readers, in every order."""

    @staticmethod
    def start(client: Any) -> None:
        for group in ("g", "h"):
            client.xgroup_create("s", group, id="0", mkstream=True)
        for number in (1, 2, 3):
            client.xadd("s", {"n": number}, id=f"{number}-0")
        client.xreadgroup("h", "d", {"s": ">"}, count=3)
        client.xack("s", "h", "1-0", "2-0", "3-0")
        client.xreadgroup("g", "c", {"s": ">"}, count=1)
        client.xack("s", "g", "1-0")

    @staticmethod
    def reads(client: Any) -> None:
        client.xreadgroup("g", "c", {"s": ">"}, count=1)
        client.xack("s", "g", "2-0")

    @staticmethod
    def takes_over(client: Any) -> None:
        client.xautoclaim("s", "g", "other", 0)
        client.xreadgroup("g", "other", {"s": ">"}, count=1)

    @staticmethod
    def sets_back(client: Any) -> None:
        client.xgroup_setid("s", "g", "1-0")
        client.xgroup_create("s", "new", id="1-0")

    @staticmethod
    def lost(client: Any) -> str | None:
        present = set(ids(client, "s"))
        added = client.xinfo_stream("s")["last-generated-id"]
        for group in client.xinfo_groups("s"):
            pending = client.xpending_range("s", group["name"], "-", "+", 9)
            waiting = {each["message_id"] for each in pending}
            last = int(group["last-delivered-id"].partition(b"-")[0])
            waiting |= {b"%d-0" % n for n in range(last + 1, int(added.partition(b"-")[0]) + 1)}
            if waiting - present:
                return f"{sorted(waiting - present)} is due to {group['name']!r}, and is gone"
        return None

    @pytest.mark.slow
    @pytest.mark.parametrize("writer", ["reads", "takes_over", "sets_back"])
    @pytest.mark.parametrize("rules", ["acknowledged", "idle"])
    def test_no_order_loses_an_entry(self, redis7: RedisServer, writer: str, rules: str) -> None:
        def collect(client: Any) -> Leftovers:
            made: Any = AcknowledgedEntries("s") if rules == "acknowledged" else Now("s", 1)
            return Leftovers(client, [made], name="j", dry_run=False, random=lambda: 0.0)

        assert_safe(
            collect,
            getattr(self, writer),
            setup=self.start,
            lost=self.lost,
            client=redis7.client(),
        )

    def test_the_search_meets_its_removals(self, redis7: RedisServer) -> None:
        def collect(client: Any) -> Leftovers:
            rule = AcknowledgedEntries("s")
            return Leftovers(client, [rule], name="j", dry_run=False, random=lambda: 0.0)

        def gone(client: Any) -> str | None:
            return None if b"1-0" in ids(client, "s") else "the entry that all have read is gone"

        assert refute(collect, [], setup=self.start, lost=gone, client=redis7.client())

    def test_a_group_made_meanwhile_for_the_first_entry_finds_it_gone(
        self, redis7: RedisServer
    ) -> None:
        """The risk that the documentation names: so the rule is declared, and not proved."""

        def collect(client: Any) -> Leftovers:
            rule = AcknowledgedEntries("s")
            return Leftovers(client, [rule], name="j", dry_run=False, random=lambda: 0.0)

        def begins_anew(client: Any) -> None:
            client.xgroup_create("s", "new", id="0")

        found = refute(
            collect, begins_anew, setup=self.start, lost=self.lost, client=redis7.client()
        )
        assert found


class Now(IdleConsumers):
    """Judges every consumer as idle, since no time passes in `refute`."""

    def __init__(self, pattern: str, idle: float) -> None:
        super().__init__(pattern, idle)
        self._idle = 0
