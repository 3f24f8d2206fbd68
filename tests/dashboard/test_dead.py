"""Dead items as the page lists them: payload, tenant, reason, age; searched, paged, bounded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.dashboards import HOSTILE, TOKEN, make_app
from support.patience import patient
from support.reapers import reaper_after
from support.servers import RedisServer
from workstealing import Recruiter
from workstealing.dashboard import Watched
from workstealing.dashboard.queries import MOST_LISTED, list_dead, listed
from workstealing.dashboard.steering import steer_dead
from workstealing.dashboard.watched import DeadItem, payload_text, watch
from workstealing.jobs import IckReaper
from workstealing.recruiting import Slice
from workstealing.structures import FairQueue, Ick, Log, ShardedIck, ShuffleQueue, TimeShardQueue
from workstealing.structures.time_shard_queue import RedisStore

__all__ = ["patient"]

ADMIN = {"Authorization": f"Bearer {TOKEN}"}
LATE_MS = 60_000


def until(is_so: Callable[[], Any]) -> None:
    """Do something again and again until it says that it is done."""
    assert any(is_so() for _ in range(500))


def ick(client: Any, payload: bytes) -> Any:
    """Return an Ick with a dead member of this name."""
    made = Ick(client, "dirty")
    made.add([payload])
    reaper = IckReaper(made, lease=0.001, max_attempts=1)
    until(lambda: [made.reserve(9), reaper.perform(Slice(9, 5.0)), made.dead()][-1])
    return made


def sharded_ick(client: Any, payload: bytes) -> Any:
    """Return a ShardedIck with a dead member of this name."""
    made = ShardedIck(client, "spread", 2)
    made.add([payload])
    reaper = IckReaper(made, lease=0.001, max_attempts=1)

    def kill() -> Any:
        for number in (0, 1):
            made.icks[number].reserve(9)
            reaper.reap(number, Slice(9, 5.0))
        return made.stats()["dead_size"]

    until(kill)
    return made


def shuffle_queue(client: Any, payload: bytes) -> Any:
    """Return a queue with a dead message of a group called senders."""
    made = ShuffleQueue(client, "mails")
    made.read("senders", "c")
    made.write("acme <b>", {"body": payload})
    assert made.read("senders", "c") is not None
    reaper = reaper_after(1, made, lease=0.001)
    until(lambda: [reaper.perform(Slice(9, 5.0)), made.dead("senders")][-1])
    return made


def fair_queue(client: Any, payload: bytes) -> Any:
    """Return a queue with a dead message."""
    made = FairQueue(client, "fair", max_attempts=1)
    made.write("acme <b>", {"body": payload}, account="<b>")
    message = made.read("c")
    assert message is not None
    assert made.nack(message) == 1
    return made


def time_shard_queue(client: Any, payload: bytes) -> Any:
    """Return a queue with a dead message."""
    made = TimeShardQueue(RedisStore(client), "later", period=3600, max_attempts=1)
    made.put(payload)
    made.take_many("gone", 1, lease=0.001, drain_all=True)
    until(lambda: [made.take("other", drain_all=True), made.dead()][-1])
    return made


def log(client: Any, payload: bytes) -> Any:
    """Return a log with a dead entry of a group called senders."""
    Log(client, "activity").append(payload)
    for shift in (0, LATE_MS):
        made = Log(client, "activity", clock_shift_ms=shift)
        made.group("senders", ack=True, lease=30, max_attempts=1).read(1)
    return Log(client, "activity")


MAKERS = [ick, sharded_ick, shuffle_queue, fair_queue, time_shard_queue, log]


@pytest.mark.parametrize("make", MAKERS)
def test_every_structure_tells_of_its_dead(
    redis7: RedisServer, never_recruiter: Recruiter, make: Any
) -> None:
    payload = b"\"'<b>bold</b>\xff\xfe\x00\x1b[31m" + "\u202egnp.exe \u200b".encode()
    structure = make(redis7.client(), payload + b"x" * 600)
    app = make_app(never_recruiter, redis7.client(), token=TOKEN, structures=[structure])
    answer = app.test_client().get("/ws/", headers=ADMIN).text
    assert "<b>" not in answer
    assert not set("\x00\x1b\u202e\u200b") & set(answer)
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)["dead"]
    (item,) = shown["items"]
    for part in ("\"'<b>bold</b>", r"\xff\xfe\x00\x1b[31m", r"\u202egnp.exe \u200b", "xxx"):
        assert part in item["payload"]
    assert item["payload"].endswith(f"… ({len(payload) + 600} bytes)")
    # A busy machine may have let a reservation go stale twice.
    assert int(item["attempts"]) >= 1
    assert "once" in item["error"] or "times" in item["error"]
    assert item["age"].endswith(("s", "min"))
    assert item["died"].endswith("UTC")
    assert item["tenant"] == ("acme <b>" if make in (shuffle_queue, fair_queue) else "\N{EN DASH}")
    if make in (shuffle_queue, log):
        # It is said once, and with its structure.
        assert item["place"].endswith(", group senders")
        assert "senders" not in item["member"]
        assert answer.count("group senders") == 2  # in the table, and in the data beside it
    data = {"structure": item["structure"], "item": item["key"], "action": "discard", "sure": "yes"}
    assert app.test_client().post("/ws/dead", data=data, headers=ADMIN).status_code == 200
    shown = json.loads(app.test_client().get("/ws/view.json", headers=ADMIN).text)["dead"]
    assert shown["items"] == shown["sets"] == []


@pytest.mark.slow
@pytest.mark.parametrize("make", [shuffle_queue, fair_queue, time_shard_queue, log, ick])
def test_ten_megabytes_are_shortened(
    redis7: RedisServer, never_recruiter: Recruiter, make: Any
) -> None:
    structure = make(redis7.client(), b"y" * (10 * 2**20 - 100))
    app = make_app(never_recruiter, redis7.client(), token=TOKEN, structures=[structure])
    answer = app.test_client().get("/ws/view.json", headers=ADMIN)
    assert len(answer.data) < 30_000
    (item,) = json.loads(answer.text)["dead"]["items"]
    assert item["payload"].endswith("… (10 MiB)")
    data = {"structure": item["structure"], "item": item["key"], "action": "revive"}
    assert app.test_client().post("/ws/dead", data=data, headers=ADMIN).status_code == 200


class Box:
    """Dead items with large payloads; it remembers how many were asked for."""

    def __init__(self, count: int, payload: Any = b"", **more: Any) -> None:
        self.items = [
            DeadItem(f"item {n:05}", n + 1, (1e9 + 60.0 * n,), payload=payload, **more)
            for n in range(count)
        ]
        self.asked: list[int] = []

    def dead(self, n: int = 100) -> list[DeadItem]:
        """List up to n, the youngest first."""
        self.asked.append(n)
        return self.items[: -n - 1 : -1]

    def revive(self, *members: Any) -> int:
        """Put back."""
        before = len(self.items)
        self.items = [each for each in self.items if each.member not in members]
        return before - len(self.items)

    discard = revive


def test_many_small_ones_are_all_listed_and_large_ones_a_few_at_a_time() -> None:
    small, large = Box(5000), Box(5000, b"z" * 2**20)
    assert len(listed(small, MOST_LISTED)) == MOST_LISTED
    assert small.asked == [2, 64, 1000]
    assert len(listed(large, MOST_LISTED)) == large.asked[-1] <= 8
    # All of them are forgotten all the same, a few at a time.
    large.items = large.items[:100]
    mine = Watched("mine", "own", dead=lambda: [("", large)])
    assert steer_dead("revive", mine, "all", sure=False) == "100 items of mine put back"
    assert max(large.asked[1:]) <= MOST_LISTED
    assert large.items == []


def test_those_dead_for_longest_come_first_and_everything_can_be_reached(
    never_recruiter: Recruiter, client: Any
) -> None:
    one = Box(23, b"of one", tenant="acme", error="Timeout")
    two = Box(2, {b"subject": "Hello", "n": b"7"})
    structures = [
        Watched("first", "own", dead=lambda: [("a part", one)], dead_size=lambda: 23),
        Watched("second", "own", dead=lambda: [("", two)]),
    ]
    app = make_app(never_recruiter, client, token=TOKEN, structures=structures)

    def ask(query: str = "") -> dict[str, Any]:
        answer = app.test_client().get(f"/ws/view.json{query}", headers=ADMIN)
        found: dict[str, Any] = json.loads(answer.text)["dead"]
        return found

    shown = ask()
    assert [each["name"] for each in shown["sets"]] == ["first", "second"]
    assert shown["text"].startswith("25 items, the oldest for ")
    assert shown["pager"]["rows"] == "1 to 10 of 25"
    pages = [ask(f"?dead_page={n}")["items"] for n in (1, 2, 3)]
    assert [len(page) for page in pages] == [10, 10, 5]
    ages = [each["died"] for page in pages for each in page]
    assert ages == sorted(ages)
    assert {each["member"] for page in pages[:1] for each in page} >= {"item 00000", "item 00001"}
    assert ask("?dead_page=99")["items"] == pages[2]
    for wanted, found in (("HELLO", 2), ("acme", 23), ("timeout", 23), ("item 00022", 1)):
        assert len(ask(f"?dead={wanted}")["items"]) == min(10, found)
        assert ask(f"?dead={wanted}")["pager"]["rows"].endswith("(25 in all)")
    assert ask("?dead=subject=Hello")["items"][0]["payload"] == "subject=Hello, n=7"
    assert [each["name"] for each in ask("?dead=hello")["sets"]] == ["second"]
    assert ask("?dead=nothing+of+that")["items"] == []
    for nonsense in ("0", "-1", "1e3", "x", "", "9" * 400, "\u0661"):
        assert ask(f"?dead_page={nonsense}")["items"] in (pages[0], pages[2])
    # Without JavaScript it is the same, and a form comes back to the page that it was on.
    html = app.test_client().get("/ws/?dead_page=3&jobs=x%3Cb%3E", headers=ADMIN).text
    assert html.count('action="/ws/dead?jobs=x%3Cb%3E&amp;dead_page=3"') >= 5
    assert '<details id="dead" open>' in html
    assert '<details id="dead">' in app.test_client().get("/ws/", headers=ADMIN).text
    assert "<b>" not in html


def test_a_structure_with_more_than_are_listed_says_so(
    never_recruiter: Recruiter, client: Any
) -> None:
    box = Box(2000)
    mine = Watched("mine", "own", dead=lambda: [("", box)], dead_size=lambda: 2000)
    assert len(list_dead(mine)) == MOST_LISTED
    app = make_app(never_recruiter, client, structures=[mine])
    shown = json.loads(app.test_client().get("/ws/view.json").text)["dead"]
    assert shown["sets"][0]["note"] == "2,000 dead, 1,000 of them listed"


class Silly:
    """An object that cannot become text."""

    def __str__(self) -> str:
        raise RuntimeError("a secret")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_payloads_of_any_kind_are_text(text: str) -> None:
    for payload in (text, text.encode(), {text: text}, {text.encode(): {text: 1}}, [text]):
        shown = payload_text(payload)
        assert not set("\x00\x1b\u202e\u2066\u200f\r\n") & set(shown)
    assert payload_text(None) == ""
    assert payload_text(Silly()) == "a Silly"
    assert payload_text({"a": Silly()}) == "a=a Silly"
    many = payload_text({str(n): "v" * 1000 for n in range(10_000)})
    assert len(many) < 1000
    assert many.endswith(", …")


def test_watching_a_log_or_an_ick_alone_changes_nothing(redis7: RedisServer) -> None:
    client = redis7.client()
    for make in MAKERS:
        watched = watch(make(client, b"p"))
        # The server removes the notes of takes and reads at any time.
        before = {each for each in client.scan_iter() if client.ttl(each) == -1}
        assert len(list_dead(watched)) == 1
        assert {each for each in client.scan_iter() if client.ttl(each) == -1} == before


def test_a_part_takes_no_item_of_another_whose_name_ends_like_it(redis7: RedisServer) -> None:
    client = redis7.client()
    icks = [Ick(client, name) for name in ("a", "b of a")]

    class Both:
        """Stands for a user's own object, which the reaper takes for its Icks."""

        def __init__(self) -> None:
            self.icks = icks

    # Each name is that of the other's member with a part of the other's name.
    for ick, member in zip(icks, ("m of b", "m"), strict=True):
        ick.add([member])
        ick.reserve(1)
        job = IckReaper(ick, lease=0.001, max_attempts=1)
        while not ick.stats()["dead_size"]:
            job.perform(Slice(5, 60.0))
            ick.reserve(1)
    watched = watch(IckReaper(Both(), lease=60.0, name="both"))
    assert watched.dead is not None
    parts = dict(watched.dead())
    assert sorted(parts) == ["a", "b of a"]
    ((item,),) = [parts["b of a"].dead()]
    assert sum(box.discard(item.member) for box in parts.values()) == 1
    assert [ick.stats()["dead_size"] for ick in icks] == [1, 0]
