"""The page: areas that tell the bytes, names that do nothing, and no script."""

from __future__ import annotations

import math
import random
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from workstealing.survey.page import HEIGHT, WIDTH, Box, page, squarified, treemap
from workstealing.survey.report import error_text, size_text, span_text

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202egnp\x1b[31m&amp;'


SERVER = {
    "product": "Redis",
    "version": "8.0.2",
    "nodes": 1,
    "database": 0,
    "used_bytes": 4_000_000,
}


def family(name: str = "page:<n>", **more: Any) -> dict[str, Any]:
    """Return a family as a survey reports it."""
    return {
        "family": name,
        "pattern": "page:*",
        "owner": "-",
        "owner_certainty": "",
        "version": "",
        "types": ["string"],
        "keys": 100,
        "measured": 100,
        "bytes": [10_000.0, 9_500.0, 10_500.0],
        "without_ttl": [1.0, 1.0, 1.0],
        "oldest_seconds": 7_200.0,
        "oldest_by": "idle",
        "garbage": "none",
        "findings": [],
        "largest": {"bytes": 1.0, "key": name},
        "examples": [name],
        **more,
    }


def finding(kind: str, size: float, **more: Any) -> dict[str, Any]:
    """Return a finding as a survey reports it."""
    return {
        "rule": "a.rule",
        "finds": "Things.",
        "kind": kind,
        "declares": "",
        "versions": "",
        "unit": "entries",
        "items": 7,
        "items_interval": [7, 7],
        "is_exact": True,
        "bytes": [size, size, size],
        "measured": 7,
        "unknown": 0,
        "why_unknown": "",
        "install": "recruiter.install(Some(client), rate=0.01)",
        "removes": "recruiter.install(Some(client, dry_run=False), rate=0.01)",
        "rate": 0.01,
        "seconds": 60.0,
        **more,
    }


def report(*families: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a result as a survey reports it."""
    return {
        "survey": 2,
        "at": 1_795_433_480.0,
        "server": SERVER,
        "keys": sum(each["keys"] for each in families),
        "bytes": [1e6, 1e6, 1e6],
        "freed": {"certain": [5.0, 5.0, 5.0], "likely": [0.0, 0.0, 0.0]},
        "families": list(families),
        "hints": [],
        "traffic_per_s": 100.0,
        "seconds": 3.0,
        "server_seconds": 0.1,
        "load": 0.03,
        "commands": 1_000,
        "notes": [],
        **more,
    }


class Tags(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_no_name_does_anything() -> None:
    evil = family(
        EVIL,
        owner=EVIL,
        version=EVIL,
        types=[EVIL],
        findings=[
            finding("certain", 10.0, install=f"f({EVIL!r})", rule=EVIL, finds=EVIL),
            finding("reported", 0.0, finds=EVIL, install="", rate=None, seconds=None),
            finding("likely", 0.0, items=0, unknown=3, why_unknown=EVIL, rule=EVIL),
        ],
        garbage="certain",
    )
    hint = {"family": EVIL, "says": EVIL, "install": EVIL}
    server = {**SERVER, "product": EVIL}
    text = page(report(evil, notes=[EVIL], server=server, hints=[hint]))
    found = Tags(text)
    assert not found.tags & {"script", "img", "iframe", "link", "object", "a", "form"}
    assert not [each for each in found.attributes if each.startswith("on")]
    assert not found.attributes & {"src", "href", "style"}
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;" in text
    assert "default-src 'none'" in text


def test_the_page_says_what_the_survey_found() -> None:
    line = "recruiter.install(F(<W>), rate=0.1)"
    declared = finding("if declared", 50.0, declares="wait=1 d", install=line, rate=0.1)
    endless = finding("no TTL", 50.0, unit="keys", items=100, items_interval=[90, 110])
    vague = finding("certain", 5_000.0, bytes=[5_000.0, 4_500.0, 5_500.0])
    hint = {"family": "tags:<n>", "says": "of 9 members 5 are gone", "install": "f()"}
    text = page(
        report(
            family(
                "conj:<n>",
                owner="cacheops",
                garbage="certain",
                findings=[vague],
            ),
            family("plain", findings=[declared]),
            family("draft:<n>", findings=[endless], owner="sessions", owner_certainty="probable"),
            hints=[hint],
        )
    )
    for said in (
        "conj:&lt;n&gt;",
        "cacheops",
        "recruiter.install(Some(client), rate=0.01)",
        "recruiter.install(Some(client, dry_run=False), rate=0.01)",
        "Each first line is a dry run: it counts, and changes nothing.",
        "certain: 7 entries, 5 kB ±10 %; gone in",
        "recruiter.install(F(&lt;W&gt;), rate=0.1)",
        "assuming wait=1 d",
        "about 100 keys ±10 %, 50 B, would get half to double of the TTL, within",
        "Nothing says that they are garbage, and primary data may be among them.",
        "probably sessions",
        "25 % of the server&#x27;s used_memory, 4 MB",
        "in database 0 of Redis 8.0.2",
        "of 9 members 5 are gone",
        "2 h idle",
        "2026-11-23",
        "±5 %",
    ):
        assert said in text, said
    assert "ikely, if" not in text


def _areas(text: str, kind: str) -> list[float]:
    found = re.findall(
        rf'<rect{kind} x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="([\d.]+)"/>', text
    )
    return [float(width) * float(height) for width, height in found]


def test_garbage_fills_its_share_of_an_area() -> None:
    one = family(garbage="certain", findings=[finding("certain", 2_500.0), finding("likely", 5e9)])
    text = treemap(report(one))
    (_, whole), (sure,), (likely,) = (
        _areas(text, kind) for kind in ("", ' class="certain"', ' class="likely"')
    )
    assert sure / whole == pytest.approx(0.25, rel=0.02)
    # It frees more than the family has: other keys go with it.
    assert likely / whole == pytest.approx(0.75, rel=0.02)


def test_thousands_of_families_are_a_picture_of_bounded_size() -> None:
    source = random.Random(1)
    many = [
        family(f"f{number}:<n>", owner=f"o{number % 5}", bytes=[source.paretovariate(1) * 1e3] * 3)
        for number in range(4_000)
    ]
    many.sort(key=lambda each: -each["bytes"][0])
    text = treemap(report(*many))
    assert len(text) < 300_000
    assert "smaller" in text


@pytest.mark.parametrize("seed", range(20))
def test_rectangles_fill_the_box_and_do_not_overlap(seed: int) -> None:
    source = random.Random(seed)
    values = sorted((source.paretovariate(0.8) for _ in range(source.randint(1, 60))), reverse=True)
    boxes = squarified(values, Box(0, 0, WIDTH, HEIGHT))
    total = math.fsum(values)
    for value, box in zip(values, boxes, strict=True):
        assert box.width * box.height == pytest.approx(value / total * WIDTH * HEIGHT, rel=1e-6)
        assert -1e-6 <= box.x <= box.x + box.width <= WIDTH + 1e-6
        assert -1e-6 <= box.y <= box.y + box.height <= HEIGHT + 1e-6
    for number, one in enumerate(boxes):
        for other in boxes[number + 1 :]:
            width = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
            height = min(one.y + one.height, other.y + other.height) - max(one.y, other.y)
            assert width <= 1e-6 or height <= 1e-6
    if len(values) > 3 and values[0] < 0.5 * total:
        # Slices along one side would be ten times as long as wide, and more.
        assert max(boxes[0].width / boxes[0].height, boxes[0].height / boxes[0].width) < 4


def test_nothing_is_no_picture() -> None:
    assert "<rect" not in treemap(report())
    assert squarified([0.0, 0.0], Box(0, 0, 1, 1)) == [Box(0, 0, 0, 0)] * 2
    assert page(report())


def test_figures_for_people() -> None:
    assert [size_text(each) for each in (0, 999, 1_500, 2.5e6, 7e9, 3e13)] == [
        *("0 B", "999 B", "1.5 kB", "2.5 MB", "7 GB", "30 TB"),
    ]
    assert [span_text(each) for each in (0.5, 90, 7_200, 4e5)] == [
        *("0.5 s", "90 s", "2 h", "4.63 d"),
    ]
    assert error_text([100.0, 98.0, 103.0]) == "±3 %"
    assert error_text([100.0, 100.0, 100.0]) == ""
    assert error_text([100.0, 90.0, 110.0]) == "±10 %"
    assert error_text([100.0, 50.0, 225.0]) == "±125 %"
