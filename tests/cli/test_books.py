"""The books: what was written, what would have been left, and what the verdict says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis

from support.servers import RedisServer, wait_until
from workstealing.cli.demo.app import Books, last_deadlines, total_figures
from workstealing.cli.demo.running import (
    WANTED_SHARE,
    Figures,
    Storage,
    broken_laws,
    collected_share,
    percentile,
    shown,
    summary,
)
from workstealing.recruiting import Recruiter, Slice
from workstealing.recruiting.slice import OUTCOMES
from workstealing.store.keys import key_slot

KEYS = [
    *("requests", "enlisted", "recruited", *OUTCOMES),
    *("items", "garbage_peak", "garbage_end", "garbage_without", "oldest_garbage_s"),
    *("p50_ms", "p99_ms", "errors"),
    *("overdue", "left", "readable", "drained", "lost", "faults"),
]


def figures(**known: float | None) -> Figures:
    """Return figures that are 0 unless told otherwise."""
    return {**dict.fromkeys(KEYS, 0), **known}


def test_a_field_that_was_rewritten_counts_by_its_last_write(tmp_path: Path) -> None:
    ledger = Books(tmp_path, Recruiter())
    ledger.record("k:/a", {"likes": 100, "content": 900})
    ledger.record("k:/b", {"likes": 150})
    ledger.record("k:/a", {"likes": 300})
    ledger.close()
    # A second process, whose file is read in any order.
    (tmp_path / "writes-0").write_text("250 likes k:/b\n50 likes k:/a\n")
    last = last_deadlines(tmp_path)
    assert last == {
        ("k:/a", "likes"): 300,
        ("k:/a", "content"): 900,
        ("k:/b", "likes"): 250,
    }


def test_all_processes_figures_are_added_up(tmp_path: Path) -> None:
    recruiter = Recruiter()
    file = Books(tmp_path, recruiter)
    recruiter.add_hook(file)

    @recruiter.job(rate=1.0)
    def tidy(slice: Slice) -> int:
        return 3

    for _ in range(5):
        recruiter.enlist()
    file.close()
    (tmp_path / "figures-0").write_text(json.dumps({"enlisted": 100, "worked": 1, "items": 2}))
    total = total_figures(tmp_path)
    assert (total["enlisted"], total["worked"], total["items"]) == (105, 6, 17)
    assert total["recruited"] == 5


@pytest.mark.parametrize(
    ("overdue", "left", "is_enough"),
    [(0, 0, True), (100, 0, True), (100, 10, True), (100, 11, False), (1, 1, False)],
)
def test_what_a_busy_machine_leaves_is_a_sentence(overdue: int, left: int, is_enough: bool) -> None:
    found = figures(garbage_without=123, overdue=overdue, left=left)
    assert (collected_share(found) >= WANTED_SHARE) is is_enough
    assert broken_laws(found) == []
    text = summary(["facts"], 5.0, found, "it was busy")
    assert "would have left 123 fields" in text
    assert ("the plan was 90 % or more: it was busy" in text) is not is_enough
    assert text.endswith(
        "the laws held: no reader was given an expired field, and one process then"
        " found and removed all 0 that had expired by then"
    )


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"readable": 2}, "readers were given 2 expired fields"),
        ({"lost": 3}, "no job found 3 expired fields"),
        ({"faults": 4}, "the app answered 4 requests with an error"),
    ],
)
def test_a_law_that_is_broken_is_an_error(broken: dict[str, int], said: str) -> None:
    found = figures(**broken)
    assert broken_laws(found) == [said]
    text = summary([], 5.0, found, "")
    assert text.endswith(f"a law was broken: {said}")
    assert "the laws held" not in text


def test_a_look_that_did_not_end_is_no_broken_law() -> None:
    found = figures(lost=None)
    assert broken_laws(found) == []
    assert "there was no time to look" in summary([], 5.0, found, "")


@pytest.mark.real
def test_what_the_storage_finds_of_each_law(redis7: RedisServer) -> None:
    with Storage(redis7.url) as storage:
        storage.keys.update(("a", "b", "c"))
        for key in ("a", "b", "c"):
            storage.hashes.hsetex(key, "f", "v", px=1)
        storage.hashes.hsetex("a", "g", "v", ex=60)
        fields = [(key, "f") for key in ("a", "b", "c")]
        wait_until(lambda: storage.count(fields, readable=True) == 0, "the fields to expire")
        # A reader that is given one would be counted: this one is.
        assert storage.count([*fields, ("a", "g")], readable=True) == 1
        assert storage.count(fields, readable=False) == 3
        # An index that has lost its entry: what no job can find is counted.
        names = storage.hashes.names
        client = redis7.client()
        shard = storage.hashes.layout.shard_of(key_slot(b"c"))
        client.zrem(names.due(shard), b"c")
        storage.drain(seconds=60.0)
        assert client.hexists("c", "f") == storage.count(fields, readable=False)
        storage.hashes.hsetex("c", "h", "v", px=1)
        wait_until(lambda: storage.count([("c", "h")], readable=True) == 0, "the field to expire")
        removed, is_done = storage.drain(seconds=60.0)
        assert (removed > 0, is_done, storage.count(fields, readable=False)) == (True, True, 0)
        assert storage.drain(seconds=0.0) == (0, False)


@pytest.mark.parametrize(("fields", "expected"), [(0, "0 fields at the end, 3"), (2, "0.5 s ago")])
def test_only_garbage_that_is_there_has_an_age(fields: int, expected: str) -> None:
    end = figures(garbage_end=fields, garbage_peak=3, oldest_garbage_s=0.5 if fields else 0)
    assert expected in summary(["facts"], 5.0, end, "")


def test_percentiles_are_values_that_occurred() -> None:
    ordered = [float(n) for n in range(1, 101)]
    assert percentile(ordered, 0.5) == 50.0
    assert percentile(ordered, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([], 0.5) == 0.0


def test_the_live_table_says_each_thing_once(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(is_live=True) as show:
        show(5.0, figures(requests=1234))
    words = [word for word in re.findall(r"[a-z0-9]+", capsys.readouterr().out) if len(word) > 3]
    assert "1234" in words
    assert [word for word in set(words) - {"garbage"} if words.count(word) > 1] == []


@pytest.mark.real
def test_draining_goes_on_after_a_reply_that_came_late(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Storage(redis7.url) as storage:
        storage.keys.add("a")
        storage.hashes.hsetex("a", "f", "v", px=1)
        wait_until(lambda: storage.count([("a", "f")], readable=True) == 0, "the field to expire")
        perform, late = storage.job.perform, [redis.TimeoutError("Timeout reading from socket")]

        def perform_late(slice: Slice) -> int:
            if late:
                raise late.pop()
            return perform(slice)

        monkeypatch.setattr(storage.job, "perform", perform_late)
        assert storage.drain(seconds=60.0) == (1, True)
        assert not late
