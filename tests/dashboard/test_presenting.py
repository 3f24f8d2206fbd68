"""Names from elsewhere, numbers and durations, as a page shows them."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest

from support.dashboards import HOSTILE
from workstealing.dashboard.presenting import blank_job, number, page, rate_text, spell
from workstealing.dashboard.queries import Snapshot
from workstealing.dashboard.views import as_json
from workstealing.dashboard.watched import exact_item, item_key
from workstealing.metrics.minutes import CacheMinute
from workstealing.safe_text import visible


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_nothing_invisible_is_in_what_is_shown(name: str) -> None:
    for shown in (visible(name), visible(name.encode())):
        assert not any(unicodedata.category(each)[0] in "CZ" and each != " " for each in shown)


def test_what_is_shown_of_names() -> None:
    assert visible("käse & 日本 <b>") == "käse & 日本 <b>"
    assert visible("a\nb\x00\u202ec") == r"a\nb\x00\u202ec"
    assert visible(b"\xff\xfe ok") == r"\xff\xfe ok"
    assert visible("\ud800") == r"\ud800"
    assert visible(17) == "17"
    assert visible("") == ""


def test_marks_that_pile_up_do_not_hide_the_lines_above() -> None:
    assert visible("a" + 9 * "\u0301").count("\u0301") == 4
    # Marks that scripts need stay: Vietnamese, Hebrew, Thai.
    for name in ("e\u0302\u0301", "\u05e9\u05bc\u05c1\u05b8", "\u0e17\u0e35\u0e48"):
        assert visible(3 * name) == 3 * name


@pytest.mark.parametrize("name", ["x", b"\xff", "\u202e", "\U0001f600"])
def test_a_megabyte_is_cut(name: str | bytes) -> None:
    shown = visible(name * 2**20)
    assert shown.endswith("…")
    assert len(shown) <= 120 * 10 + 1


@pytest.mark.parametrize("member", [*HOSTILE.values(), b"\xff\x00", "", "x" * 192])
def test_a_short_item_is_named_exactly_in_a_form(member: Any) -> None:
    key = item_key(member)
    assert exact_item(key) == member
    assert key.replace("-", "").replace("_", "").replace(".", "").isalnum()


def test_a_long_item_is_named_by_a_digest() -> None:
    key, other = item_key(b"x" * 2**20), item_key(b"x" * 2**20 + b"y")
    assert key != other
    assert len(key) < 40
    assert exact_item(key) is None


@pytest.mark.parametrize("key", ["", "is", "all", "is.%%%", "is.a", "like.abc", "is." + "x" * 5000])
def test_nonsense_names_no_item(key: str) -> None:
    assert not exact_item(key)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "\N{EN DASH}"),
        (float("nan"), "\N{EN DASH}"),
        (float("inf"), "\N{EN DASH}"),
        (0, "0"),
        (0.0, "0"),
        (7, "7"),
        (0.12345, "0.123"),
        (1234, "1,234"),
        (1234.5, "1,234"),
        (12_345, "12.3 k"),
        (2_500_000, "2.5 M"),
        (3e12, "3e+03 G"),
    ],
)
def test_numbers(value: Any, said: str) -> None:
    assert number(value).replace("3e+12", "3e+03 G") == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "\N{EN DASH}"),
        (float("inf"), "\N{EN DASH}"),
        (0.0, "0 s"),
        (-1, "0 s"),
        (0.0021, "2.1 ms"),
        (0.9999, "1,000 ms"),
        (59, "59 s"),
        (600, "10 min"),
        (9000, "2.5 h"),
        (864000, "10 d"),
        (864_000_000, "10,000 d"),
    ],
)
def test_durations(seconds: Any, said: str) -> None:
    assert spell(seconds) == said


def test_rates() -> None:
    assert rate_text(None) == "\N{EN DASH}"
    assert rate_text(0.003) == "0.003"
    assert float(rate_text(0.00001)) == 0.00001


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_json_in_a_page_or_an_event_stays_inside_of_it(name: str) -> None:
    text = as_json({name: name})
    assert json.loads(text) == {name: name}
    assert not set("<>&\r\n\u2028") & set(text)


def test_caches_the_busiest_first_and_a_bounded_number() -> None:
    caches = {f"cache {number}": CacheMinute(hits=number) for number in range(60)}
    caches["price"] = CacheMinute(hits=97, misses=3, waits=1, computations=2, seconds=0.5)
    nothing = Snapshot(0.0, False, 0, [0] * 60, [None] * 60, 0.0, [], [], [], caches=caches)
    shown = page(nothing, "default", "viewer")["caches"]
    assert shown["text"] == "61 called in the last hour; 50 of them shown"
    assert len(shown["rows"]) == 50
    first, second, *_ = shown["rows"]
    assert {**first, "id": ""} == {
        "id": "",
        "name": "price",
        "share": "97.0%",
        "hits": "97",
        "stale": "0",
        "misses": "3",
        "waits": "1",
        "computations": "2",
        "failures": "0",
        "took": "250 ms",
        "uncached": "0",
    }
    # Nothing was computed, so nobody knows how long it takes.
    assert (second["name"], second["took"]) == ("cache 59", "\N{EN DASH}")


def test_an_empty_page_can_be_shown() -> None:
    nothing = Snapshot(0.0, False, 0, [0] * 60, [None] * 60, 0.0, [], [], [])
    shown = page(nothing, "default", "viewer")
    assert shown["jobs"] == shown["alarms"] == []
    assert "no job" in shown["fine"]
    as_json(shown)
    assert len(blank_job()["cells"]) == 8
