"""`refute` finds the history in which an unsafe collector removes a live item, and no other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from redis.exceptions import WatchError

from support.patience import patient  # noqa: F401 - an autouse fixture
from workstealing.errors import ConfigurationError
from workstealing.recruiting import FunctionJob
from workstealing.store.attempt import attempt
from workstealing.testing import (
    Counterexample,
    Inconclusive,
    ShiftedTime,
    assert_safe,
    refute,
    refuting,
)


@pytest.fixture(params=["fakeredis_server", "redis7"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param).client()


@pytest.fixture
def real(redis7: Any) -> Any:
    return redis7.client()


# A tag set: its members name keys.


def dead_member(client: Any) -> None:
    client.sadd("tags", "row", "old")


def cache_row(client: Any) -> None:
    with client.pipeline() as block:
        block.set("row", 1)
        block.sadd("tags", "row")
        block.execute()


def untagged(client: Any) -> str | None:
    if client.exists("row") and not client.sismember("tags", "row"):
        return "the row is cached, and its tag is gone"
    return None


def reap_as_cacheops(client: Any) -> None:
    _, members = client.sscan("tags", count=100)
    members = sorted(members)
    values = client.mget(members)
    dead = [member for member, value in zip(members, values, strict=True) if value is None]
    if dead:
        client.srem("tags", *dead)


def exists_then_srem(client: Any) -> None:
    if not client.exists("row"):
        client.srem("tags", "row")


def watch_then_srem(client: Any) -> None:
    with client.pipeline() as block:
        block.watch("row")
        if not block.exists("row"):
            block.multi()
            block.srem("tags", "row")
            block.execute()


def attempt_to_srem(client: Any) -> None:
    with attempt(client, "row", in_any_slot=True) as one:
        (exists,) = one.read(("EXISTS", "row"))
        if not exists:
            one.commit(("SREM", "tags", "row"))


def watch_the_set(client: Any) -> None:
    with client.pipeline() as block:
        block.watch("tags")
        if not block.exists("row"):
            block.multi()
            block.srem("tags", "row")
            block.execute()


@pytest.mark.parametrize("collector", [reap_as_cacheops, exists_then_srem])
def test_a_member_whose_key_comes_back_is_lost(client: Any, collector: Any) -> None:
    found = refute(collector, cache_row, setup=dead_member, lost=untagged, client=client)
    assert isinstance(found, Counterexample)
    last = found.events[-1]
    assert (last.actor, last.command.partition(" ")[0]) == ("collector", "SREM")
    # Shortest: the writer's one step, between the collector's last read and its SREM.
    assert [each.actor for each in found.events[-2:]] == ["writer", "collector"]
    assert [each.actor for each in found.events].count("writer") == 1
    assert "lost: the row is cached" in str(found)
    assert "writer: MULTI; SET row 1; SADD tags row; EXEC" in str(found)
    assert client.dbsize() == 0


def test_a_watch_on_the_absent_key_is_safe(client: Any) -> None:
    assert_safe(watch_then_srem, cache_row, setup=dead_member, lost=untagged, client=client)


def test_an_attempt_on_the_absent_key_is_safe(real: Any) -> None:
    assert_safe(attempt_to_srem, cache_row, setup=dead_member, lost=untagged, client=real)


def test_sadd_of_a_present_member_breaks_no_watch(real: Any) -> None:
    found = refute(watch_the_set, cache_row, setup=dead_member, lost=untagged, client=real)
    assert isinstance(found, Counterexample)
    assert "MULTI; SREM tags row; EXEC" in found.events[-1].command


def test_a_jobs_commands_are_steps(real: Any) -> None:
    def unsafe(client: Any) -> FunctionJob:
        def go(slice: Any) -> int:
            with attempt(client, "tags", slice=slice, in_any_slot=True) as one:
                if not one.read(("EXISTS", "row"))[0]:
                    one.commit(("SREM", "tags", "row"))
            return 1

        return FunctionJob(go, name="unsafe")

    found = refute(unsafe, cache_row, setup=dead_member, lost=untagged, client=real)
    assert isinstance(found, Counterexample)
    assert [each.command.split()[0] for each in found.events] == [
        "WATCH",
        "EXISTS",
        "MULTI;",
        "MULTI;",
    ]


# A stream with a group.


def stream(client: Any) -> None:
    client.xgroup_create("s", "g", id="0", mkstream=True)
    client.xadd("s", {"n": 1}, id="1-0")
    client.xadd("s", {"n": 2}, id="2-0")


def consume(client: Any) -> None:
    if client.xreadgroup("g", "c", {"s": ">"}, count=1, block=1000):
        client.xack("s", "g", "1-0")


def missing_entry(client: Any) -> str | None:
    present = {name for name, _ in client.xrange("s")}
    groups = client.xinfo_groups("s")
    waiting = {each["message_id"] for each in client.xpending_range("s", "g", "-", "+", 9)}
    if waiting - present:
        return f"{sorted(waiting - present)} is pending, and its entry is gone"
    if groups[0]["last-delivered-id"] in (b"0-0", b"1-0") and b"2-0" not in present:
        return "2-0 was never delivered"
    if client.exists("delivered") and not waiting:
        return "an entry was delivered and never acknowledged, and nobody will get it again"
    return None


def trim_to_last_delivered(client: Any) -> None:
    lowest = min(each["last-delivered-id"] for each in client.xinfo_groups("s"))
    head, _, tail = lowest.partition(b"-")
    client.xtrim("s", minid=b"%b-%d" % (head, int(tail) + 1), approximate=False)


def trim_to_first_pending(client: Any) -> None:
    (group,) = client.xinfo_groups("s")
    pending = client.xpending("s", "g")
    head, _, tail = group["last-delivered-id"].partition(b"-")
    first = pending["min"] or b"%b-%d" % (head, int(tail) + 1)
    client.xtrim("s", minid=first, approximate=False)


def test_a_stream_trimmed_to_the_last_delivered_id_loses_what_is_pending(client: Any) -> None:
    found = refute(trim_to_last_delivered, consume, setup=stream, lost=missing_entry, client=client)
    assert isinstance(found, Counterexample)
    assert "is pending, and its entry is gone" in found.sentence
    assert [each.command.split()[0] for each in found.events] == ["XREADGROUP", "XINFO", "XTRIM"]
    assert found.unfinished == ("writer",)


def test_a_stream_trimmed_to_its_first_pending_id_in_that_order_of_reads_is_safe(
    client: Any,
) -> None:
    # The last delivered id is read first: a delivery in between can only make the trim smaller.
    assert_safe(trim_to_first_pending, consume, setup=stream, lost=missing_entry, client=client)


def consumer_exists(client: Any) -> None:
    stream(client)
    client.xgroup_createconsumer("s", "g", "c")


def deliver(client: Any) -> None:
    client.xreadgroup("g", "c", {"s": ">"}, count=1)
    client.set("delivered", 1)


def delete_consumer(client: Any) -> None:
    client.xgroup_delconsumer("s", "g", "c")


def watch_and_delete_consumer(client: Any) -> None:
    with client.pipeline() as block:
        block.watch("s")
        if not block.xpending_range("s", "g", "-", "+", 1, consumername="c"):
            block.multi()
            block.xgroup_delconsumer("s", "g", "c")
            block.execute()


def delete_consumer_by_script(client: Any) -> None:
    client.eval(
        "if #redis.call('XPENDING', KEYS[1], 'g', '-', '+', 1, 'c') == 0 then"
        " redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'g', 'c') end",
        1,
        "s",
    )


def test_a_consumer_deleted_unseen_loses_its_pending_entries(client: Any) -> None:
    found = refute(
        delete_consumer, deliver, setup=consumer_exists, lost=missing_entry, client=client
    )
    assert isinstance(found, Counterexample)


def test_reads_of_a_group_break_no_watch(real: Any) -> None:
    found = refute(
        watch_and_delete_consumer, deliver, setup=consumer_exists, lost=missing_entry, client=real
    )
    assert isinstance(found, Counterexample)
    assert [each.actor for each in found.events].count("writer") == 2


def test_a_consumer_deleted_by_a_script_that_looks_is_safe(real: Any) -> None:
    assert_safe(
        delete_consumer_by_script, deliver, setup=consumer_exists, lost=missing_entry, client=real
    )


# A list of replies, which must be seen twice.


def reply_list(client: Any) -> None:
    client.rpush("replies", "old")


def lost_reply(client: Any) -> str | None:
    if client.exists("replied") and not client.lrange("replies", 0, -1):
        return "a reply came, and its list is gone"
    return None


def write_reply(client: Any) -> None:
    with client.pipeline() as block:
        block.rpush("replies", "new")
        block.set("replied", 1)
        block.execute()


def delete_by_age(client: Any) -> None:
    now, _ = client.time()
    seen = client.get("seen")
    if seen is None:
        client.set("seen", now)
    elif now - int(seen) >= 3600:
        client.delete("replies")


def delete_if_unchanged(client: Any) -> None:
    now, _ = client.time()
    with client.pipeline() as block:
        block.watch("replies")
        length = block.llen("replies")
        seen = block.get("seen")
        if seen is None or int(seen.split(b":")[1]) != length:
            block.multi()
            block.set("seen", f"{now}:{length}")
        elif now - int(seen.split(b":")[0]) >= 3600:
            block.multi()
            block.delete("replies")
        block.execute()


def an_hour(client: Any) -> Any:
    """Return a `between`: a reader that lives has taken all earlier replies after an hour."""

    def passes(clock: ShiftedTime) -> None:
        client.delete("replied")
        clock.advance(3601)

    return passes


def test_a_list_deleted_by_the_age_of_its_first_sight_alone_is_lost(client: Any) -> None:
    pair: dict[str, Any] = {"setup": reply_list, "lost": lost_reply, "client": client}
    found = refute(delete_by_age, write_reply, slices=2, between=an_hour(client), **pair)
    assert isinstance(found, Counterexample)
    assert found.events[-1].command == "DEL replies"
    # Without the shift the hour does not pass.
    assert refute(delete_by_age, write_reply, slices=2, **pair) is None


def test_a_list_that_is_deleted_only_unchanged_is_safe(client: Any) -> None:
    pair: dict[str, Any] = {"setup": reply_list, "lost": lost_reply, "client": client}
    assert_safe(delete_if_unchanged, write_reply, slices=2, between=an_hour(client), **pair)
    deleted = []

    def looks(client: Any) -> str | None:
        deleted.append(not client.exists("replies"))
        return None

    assert refute(
        delete_if_unchanged, [], **{**pair, "lost": looks}, slices=2, between=an_hour(client)
    ) is (None)
    assert deleted[-1], "the safe collector must delete something, or it proves nothing"


# The search itself.


def test_the_commands_of_a_pipeline_without_multi_are_steps(client: Any) -> None:
    def collect(client: Any) -> None:
        with client.pipeline(transaction=False) as several:
            several.exists("other")
            several.delete("a")
            several.execute()

    def lost(client: Any) -> str | None:
        return "a" if client.exists("done") and not client.exists("a") else None

    def write(client: Any) -> None:
        client.mset({"a": 1, "done": 1})

    found = refute(collect, write, lost=lost, client=client)
    assert isinstance(found, Counterexample)
    assert [each.command.split()[0] for each in found.events] == ["EXISTS", "MSET", "DEL"] or [
        each.command.split()[0] for each in found.events
    ] == ["MSET", "EXISTS", "DEL"]


def test_a_collector_that_dies_between_two_commands_is_tried(client: Any) -> None:
    def move(client: Any) -> None:
        client.srem("tags", "row")
        client.sadd("tags", "row")

    def both(client: Any) -> None:
        client.sadd("tags", "row")
        client.set("row", 1)

    assert refute(move, both, lost=untagged, client=client, deaths=False) is None
    found = refute(move, both, lost=untagged, client=client)
    assert isinstance(found, Counterexample)
    assert "collector: goes no further" in str(found)


def test_an_item_that_the_writer_alone_loses_does_not_count(client: Any) -> None:
    def tag_late(client: Any) -> None:
        client.set("row", 1)
        client.sadd("tags", "row")

    assert refute(lambda client: client.get("x"), tag_late, lost=untagged, client=client) is None


def test_two_writers_are_interleaved(client: Any) -> None:
    def write_row(client: Any) -> None:
        client.set("row", 1)

    def tag(client: Any) -> None:
        client.sadd("tags", "row")

    def collect(client: Any) -> None:
        client.delete("tags")

    def lost(client: Any) -> str | None:
        return untagged(client) if client.exists("row") else None

    found = refute(collect, [tag, write_row], lost=lost, client=client, deaths=False)
    assert isinstance(found, Counterexample)
    assert {each.actor for each in found.events} == {"collector", "writer 1", "writer 2"}


def test_a_blocking_command_without_a_reply_ends_as_if_timed_out(client: Any) -> None:
    got = []

    def pops(client: Any) -> None:
        got.append(client.blpop(["nothing"], timeout=0))

    assert refute(lambda client: client.get("x"), pops, lost=lambda _: None, client=client) is None
    assert set(got) == {None}


def test_a_bound_that_was_reached_is_said(client: Any) -> None:
    def many(client: Any) -> None:
        for _ in range(9):
            client.incr("n")

    pair: dict[str, Any] = {"lost": lambda _: None, "client": client}
    found = refute(many, many, most_steps=4, **pair)
    assert isinstance(found, Inconclusive)
    assert not found
    assert "most_steps=4" in str(found)
    found = refute(many, many, most_histories=20, **pair)
    assert isinstance(found, Inconclusive)
    assert found.histories == 20
    with pytest.raises(AssertionError, match="most_histories=20"):
        assert_safe(many, many, most_histories=20, **pair)


def test_a_pipeline_sees_the_shifted_time_too(client: Any) -> None:
    seen = []

    def collect(client: Any) -> None:
        with client.pipeline(transaction=False) as several:
            several.time()
            seen.append(several.execute()[0][0])

    refute(collect, [], lost=lambda _: None, client=client, slices=2, between=an_hour(client))
    assert seen[1] - seen[0] >= 3600


def test_a_transaction_depends_on_what_is_watched(client: Any) -> None:
    """It names other keys, and yet its order with a write of the watched one decides."""

    def gives_up(client: Any) -> None:
        with client.pipeline() as block:
            block.watch("a")
            block.watch("c")
            block.multi()
            block.set("d", 1)
            try:
                block.execute()
            except WatchError:
                client.delete("b")

    found = refute(
        gives_up,
        lambda client: client.set("a", 1),
        setup=lambda client: client.set("b", 1),
        lost=lambda client: None if client.exists("b") else "b is gone",
        client=client,
    )
    assert isinstance(found, Counterexample)
    assert len(found.events) == 5


def test_what_comes_between_two_slices_is_a_step(client: Any) -> None:
    """It may see what a writer has done after the slice, and after its last command."""
    found = refute(
        lambda own: own.get("a"),
        lambda own: own.set("row", 1),
        setup=lambda own: own.set("old", 1),
        lost=lambda own: "the row was swept" if own.get("swept") else None,
        client=client,
        slices=2,
        between=lambda _: client.exists("row") and client.set("swept", 1),
    )
    assert isinstance(found, Counterexample)


def test_another_transaction_ends_no_watch(client: Any) -> None:
    def tags(own: Any) -> None:
        with own.pipeline() as outer:
            outer.watch("tag")
            if outer.exists("tag"):
                with own.pipeline() as inner:
                    inner.incr("tries")
                    inner.execute()
                outer.multi()
                outer.set("row", 1)
                outer.execute()

    found = refute(
        lambda own: own.delete("tag"),
        tags,
        setup=lambda own: own.set("tag", 1),
        lost=lambda own: "no tag" if own.exists("row") and not own.exists("tag") else None,
        client=client,
    )
    assert isinstance(found, Counterexample)


def test_a_command_in_one_text_may_touch_any_key(client: Any) -> None:
    def tags(own: Any) -> None:
        own.execute_command("SET tag 1")
        own.set("row", 1)

    def collect(own: Any) -> None:
        if not own.exists("row"):
            own.execute_command("DEL tag")

    lost = "the tag is gone"
    found = refute(
        collect,
        tags,
        lost=lambda own: lost if own.exists("row") and not own.exists("tag") else None,
        client=client,
    )
    assert isinstance(found, Counterexample)


def test_orders_of_writers_are_all_tried(client: Any) -> None:
    """Beside the collector they do not meet, but without it they write to one key."""

    def one(own: Any) -> None:
        own.set("a" if own.get("flag") else "x", 1)

    found = refute(
        lambda own: own.set("flag", 1),
        [one, lambda own: own.set("x", 2)],
        lost=lambda own: "x is 2" if own.get("x") == b"2" else None,
        client=client,
    )
    assert isinstance(found, Counterexample)


@pytest.mark.parametrize("command", [("OBJECT", "FREQ", "a"), ("DBSIZE",)])
def test_replies_that_reads_change_are_no_reads(command: tuple[str, ...]) -> None:
    read = refuting._touched_by(("GET", "a"))
    assert not refuting._touched_by(command).commutes_with(read)
    assert read.commutes_with(refuting._touched_by(("EXISTS", "a")))


def test_the_order_with_the_fewest_switches_is_shown(client: Any) -> None:
    def rewrite(own: Any) -> None:
        own.sadd("tags", "row")
        own.set("row", 1)

    found = refute(exists_then_srem, rewrite, setup=dead_member, lost=untagged, client=client)
    assert isinstance(found, Counterexample)
    assert [each.actor for each in found.events] == ["collector", "writer", "writer", "collector"]


def program(chance: random.Random) -> list[tuple[str, str, str]]:
    """Return one or two parts of a program on three keys, made up by chance."""
    parts = ("set", "delete", "delete_if", "watch", "push", "walk")
    count = chance.randint(1, 2)
    return [(chance.choice(parts), *chance.choices("abc", k=2)) for _ in range(count)]  # type: ignore[misc]


def run_program(client: Any, parts: list[tuple[str, str, str]]) -> None:
    for part, one, other in parts:
        if part == "set":
            client.set(one, 1)
        elif part == "delete":
            client.delete(one, other)
        elif part == "delete_if" and not client.get(one):
            client.delete(other)
        elif part == "watch":
            with client.pipeline() as block:
                block.watch(one)
                block.multi()
                block.set("d", 2)
                try:
                    block.execute()
                except WatchError:
                    client.delete(other)
        elif part == "push":
            client.incr(one)
        elif part == "walk" and not client.keys(one):
            client.set(other, 3)


@pytest.mark.slow
def test_orders_that_are_left_out_lose_nothing_that_others_do_not(
    monkeypatch: pytest.MonkeyPatch, redis7: Any
) -> None:
    """The search that leaves out equal orders and the one of all orders agree on each program."""
    chance, client, losing = random.Random(19_680_403), redis7.client(), 0
    way, counts = 0, [0, 0]

    def lost(client: Any) -> str | None:
        counts[way] += 1
        a, b, c = client.mget(["a", "b", "c"])
        return "b is there without a and c" if b and not a and not c else None

    for _ in range(60):
        collected, *written = (program(chance) for _ in range(2))
        found = []
        for way in range(2):
            with monkeypatch.context() as patch:
                if way:
                    patch.setattr(refuting._Touched, "commutes_with", lambda *_: False)
                one = refute(
                    lambda client, parts=collected: run_program(client, parts),
                    [lambda client, parts=each: run_program(client, parts) for each in written],
                    lost=lost,
                    client=client,
                )
            assert not isinstance(one, Inconclusive)
            found.append(one and sum(each.actor != "collector" for each in one.events))
        assert found[0] == found[1], (collected, written)
        losing += found[0] is not None
    assert 6 < losing < 54
    assert counts[0] < counts[1]


def test_assert_safe_shows_the_history(client: Any) -> None:
    with pytest.raises(AssertionError, match="collector: SREM tags row"):
        assert_safe(exists_then_srem, cache_row, setup=dead_member, lost=untagged, client=client)


def test_fakeredis_serves_without_a_client() -> None:
    assert refute(exists_then_srem, cache_row, setup=dead_member, lost=untagged)


def test_errors_of_the_functions_and_wrong_states_are_raised(client: Any) -> None:
    def broken(client: Any) -> None:
        client.get("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        refute(broken, cache_row, lost=untagged, client=client)
    with pytest.raises(ConfigurationError, match="lost: gone"):
        refute(watch_then_srem, cache_row, lost=lambda _: "gone", client=client)
    client.set("mine", 1)
    with pytest.raises(ConfigurationError, match="not empty"):
        refute(watch_then_srem, cache_row, lost=untagged, client=client)
    assert client.get("mine") == b"1"


def test_a_side_that_differs_between_runs_is_refused(client: Any) -> None:
    runs: Iterator[int] = iter(range(9, 0, -1))

    def fewer(client: Any) -> None:
        for _ in range(next(runs, 0)):
            client.incr("n")

    with pytest.raises(ConfigurationError, match="fewer commands"):
        refute(fewer, cache_row, lost=lambda _: None, client=client)
