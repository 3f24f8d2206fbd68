"""A survey's result as one HTML file: a picture and a table, without script and without a server.

The picture is a squarified treemap (Bruls, Huizing, van Wijk: Squarified Treemaps, VisSym 2000):
each family's area is its share of the bytes, and what is garbage of it is filled from below.
"""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workstealing.safe_text import visible
from workstealing.survey.report import (
    HOW_TO,
    SECTIONS,
    about_text,
    amount_text,
    endless_text,
    error_text,
    frees_text,
    items_of,
    items_text,
    oldest_text,
    owner_text,
    share_text,
    size_text,
    way_text,
    ways,
    where_text,
)

WIDTH, HEIGHT = 960, 520
_HEADER, _GAP, _LETTER = 17.0, 1.0, 6.3
_LEAST_AREA, _MOST_IN_A_GROUP = 60.0, 120
_LONGEST = 200

STYLE = """\
.tm text{font:11px system-ui,sans-serif;fill:#fff}.tm .group text.name{font-weight:600;fill:#333}
.tm .group>rect{fill:#e8eaee}.tm .family>rect{fill:#5b7089}
.tm .family>rect.certain{fill:#b3261e}.tm .family>rect.likely{fill:#b26a00}
.tm .family:hover>rect:first-of-type{stroke:#000;stroke-width:1.5}
@media(prefers-color-scheme:dark){.tm .group>rect{fill:#2a2e35}
.tm .group text.name{fill:#ddd}.tm .family>rect{fill:#4a5b70}
.tm .family:hover>rect:first-of-type{stroke:#fff}}"""
"""The picture's colours; the dashboard has the same in its own style sheet."""

_PAGE_STYLE = """\
body{font:14px/1.45 system-ui,sans-serif;color:#222;background:#fff;margin:2em auto;
max-width:1100px;padding:0 1em}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:1.8em}
svg{width:100%;height:auto;display:block}.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13px}
th,td{padding:.3em .6em;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}
td:first-child{font-family:ui-monospace,monospace;white-space:normal;overflow-wrap:anywhere;
min-width:12em}
code{font-family:ui-monospace,monospace;background:#f2f3f5;padding:.1em .3em;overflow-wrap:anywhere}
ul{padding-left:1.3em}li{margin:.6em 0}
.do{display:flex;flex-wrap:wrap;gap:0 .6em;margin:.2em 0}.do span{flex:0 0 4.6em;color:#666}
.key span{display:inline-block;width:.9em;height:.9em;margin:0 .35em 0 1.1em;vertical-align:-.1em}
.b-certain{background:#b3261e}.b-likely{background:#b26a00}.b-rest{background:#5b7089}
.certain{color:#b3261e;font-weight:600}.likely{color:#8a5200;font-weight:600}.soft{color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#17191d}th,td{border-color:#333}
code{background:#24272d}.do span{color:#999}
.certain{color:#ff8a80}.likely{color:#ffb74d}.soft{color:#999}
.b-rest{background:#4a5b70}}"""


class Box(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def squarified(values: Sequence[float], box: Box) -> list[Box]:
    """Return a rectangle for each value, as near to squares as rows of them can be.

    Arguments:
        values: above 0, the greatest first.
        box: it they fill.
    """
    total = math.fsum(values)
    if total <= 0 or box.width <= 0 or box.height <= 0:
        return [Box(box.x, box.y, 0.0, 0.0) for _ in values]
    scale = box.width * box.height / total
    areas = [each * scale for each in values]
    found: list[Box] = []
    at = 0
    while at < len(areas):
        side = min(box.width, box.height)
        end = at + 1
        while end < len(areas) and _worst(areas[at : end + 1], side) <= _worst(areas[at:end], side):
            end += 1
        row, box = _row(areas[at:end], box)
        found += row
        at = end
    return found


def _worst(areas: Sequence[float], side: float) -> float:
    """Return the largest ratio of two sides in a row along a side."""
    total = math.fsum(areas)
    if total <= 0 or side <= 0 or min(areas) <= 0:
        return math.inf
    return max(side**2 * max(areas) / total**2, total**2 / (side**2 * min(areas)))


def _row(areas: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    """Lay a row along the shorter side; return it, and the rest of the box."""
    total = math.fsum(areas)
    found = []
    if box.width >= box.height:
        width = min(box.width, total / box.height) if box.height > 0 else 0.0
        y = box.y
        for each in areas:
            height = each / width if width > 0 else 0.0
            found.append(Box(box.x, y, width, height))
            y += height
        return found, Box(box.x + width, box.y, max(0.0, box.width - width), box.height)
    height = min(box.height, total / box.width)
    x = box.x
    for each in areas:
        width = each / height if height > 0 else 0.0
        found.append(Box(x, box.y, width, height))
        x += width
    return found, Box(box.x, box.y + height, box.width, max(0.0, box.height - height))


def treemap(report: Mapping[str, Any]) -> str:
    """Return the picture as an SVG element without script; names in it are escaped."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for family in report["families"]:
        if family["bytes"][0] > 0:
            groups.setdefault(_group_name(family), []).append(family)
    ordered = sorted(groups.items(), key=lambda each: -_bytes(each[1]))
    boxes = squarified([_bytes(each) for _, each in ordered], Box(0, 0, WIDTH, HEIGHT))
    opening = (
        f'<svg class="tm" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' role="img" aria-label="bytes by owner and family; garbage is marked">'
    )
    parts = [opening]
    for (owner, families), box in zip(ordered, boxes, strict=True):
        parts += _group(owner, families, box)
    return "\n".join([*parts, "</svg>"])


def _group_name(family: Mapping[str, Any]) -> str:
    return owner_text({**family, "version": ""})


def _group(owner: str, families: Sequence[Mapping[str, Any]], box: Box) -> Iterator[str]:
    name = "unknown owner" if owner == "-" else owner
    size = _bytes(families)
    told = f"{name}: {size_text(size)} in {len(families):,} families"
    yield f'<g class="group"><title>{safe(told)}</title>{_rect(_inner(box, _GAP))}'
    header = _HEADER if box.height > 3 * _HEADER and box.width > 40 else 0.0
    if header:
        label = _cut(f"{name}  {size_text(size)}", box.width - 8)
        yield f'<text class="name" x="{box.x + 5:.1f}" y="{box.y + 13:.1f}">{safe(label)}</text>'
    yield "</g>"
    inside = _inner(Box(box.x, box.y + header, box.width, box.height - header), 2 * _GAP)
    area = inside.width * inside.height
    large = [
        each
        for each in families[:_MOST_IN_A_GROUP]
        if size and each["bytes"][0] / size * area >= _LEAST_AREA
    ]
    rest = families[len(large) :]
    sizes = [each["bytes"][0] for each in large] + ([_bytes(rest)] if rest else [])
    boxes = squarified(sizes, inside)
    for family, each in zip(large, boxes, strict=False):
        yield from _family(family, each)
    if rest and boxes:
        told = f"{len(rest):,} smaller families: {size_text(_bytes(rest))}"
        yield from _tile(told, f"{len(rest):,} smaller", boxes[-1], 0.0, 0.0)


def _family(family: Mapping[str, Any], box: Box) -> Iterator[str]:
    size = family["bytes"][0]
    certain, likely = (min(1.0, freed(family, kind) / size) for kind in ("certain", "likely"))
    told = f"{family['family']}\n{family['keys']:,} keys, {about_text(family['bytes'])}"
    for kind in ("certain", "likely"):
        if freed(family, kind):
            told += f"\n{size_text(freed(family, kind))} {kind} garbage"
    yield from _tile(told, family["family"], box, certain, min(likely, 1.0 - certain))


def _tile(told: str, name: str, box: Box, certain: float, likely: float) -> Iterator[str]:
    inner = _inner(box, _GAP / 2)
    lines = "\n".join(visible(each, _LONGEST) for each in told.split("\n"))
    yield f'<g class="family"><title>{html.escape(lines)}</title>{_rect(inner)}'
    bottom = inner.y + inner.height
    for kind, part in (("certain", certain), ("likely", likely)):
        height = inner.height * part
        if height > 0:
            bottom -= height
            yield _rect(Box(inner.x, bottom, inner.width, height), kind)
    if box.height > 15 and box.width > 34:
        label = _cut(name, box.width - 8)
        yield f'<text x="{box.x + 4:.1f}" y="{box.y + 13:.1f}">{safe(label)}</text>'
    yield "</g>"


def freed(family: Mapping[str, Any], kind: str) -> float:
    """Return the bytes of a family that garbage of a kind has."""
    return math.fsum(each["bytes"][0] for each in family["findings"] if each["kind"] == kind)


def _bytes(families: Sequence[Mapping[str, Any]]) -> float:
    return math.fsum(each["bytes"][0] for each in families)


def _inner(box: Box, gap: float) -> Box:
    return Box(
        box.x + gap / 2, box.y + gap / 2, max(0.0, box.width - gap), max(0.0, box.height - gap)
    )


def _rect(box: Box, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return (
        f'<rect{named} x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}"'
        f' height="{box.height:.1f}"/>'
    )


def _cut(text: str, width: float) -> str:
    most = max(1, int(width / _LETTER))
    shown = visible(text, _LONGEST)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def safe(text: Any) -> str:
    """Return foreign text for HTML: escaped, of a bounded length, without invisible characters."""
    return html.escape(visible(text, _LONGEST))


# ---- the page ------------------------------------------------------------------------------------


_POLICY = (
    '<meta http-equiv="Content-Security-Policy"'
    " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)


def page(report: Mapping[str, Any]) -> str:
    """Return the whole file.

    Arguments:
        report: as `report_of` makes it.
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report["at"]))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            # Nothing may be loaded or run, whatever a name contains.
            _POLICY,
            f"<title>Survey of {when}</title><style>{_PAGE_STYLE}\n{STYLE}</style></head><body>",
            f'<h1>{summary(report)}</h1><p class="soft">{when}</p>',
            treemap(report),
            LEGEND,
            *body(report),
            "</body></html>\n",
        ]
    )


LEGEND = (
    '<p class="key">Area: bytes.<span class="b-certain"></span>certain garbage'
    '<span class="b-likely"></span>likely garbage<span class="b-rest"></span>the rest</p>'
)


def summary(report: Mapping[str, Any]) -> str:
    """Return the result in one line, as HTML."""
    sure, likely = (about_text(report["freed"][kind]) for kind in ("certain", "likely"))
    return safe(
        f"{report['keys']:,} keys, {about_text(report['bytes'])} in {where_text(report)}:"
        f" {sure} certain garbage, {likely} likely"
    )


def body(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the ways to collect the garbage, the table of all families, and the notes, as HTML."""
    if share := share_text(report):
        yield f"<p>These keys take {safe(share)}.</p>"
    found = ways(report)
    if found:
        traffic = f"Times at {report['traffic_per_s']:g} callers a second."
        yield f'<p class="how">{html.escape(HOW_TO)} {traffic}</p>'
    for kinds, heading, more in SECTIONS:
        some = [each for each in found if each["kinds"][0] in kinds]
        if some:
            yield f"<h2>{html.escape(heading)}</h2>"
            yield f"<p>{html.escape(more)}</p><ul>" if more else "<ul>"
            yield from map(_way, some)
            yield "</ul>"
    if report["hints"]:
        yield "<h2>Hints, which no rule proves</h2><ul>"
        yield from map(_hint, report["hints"])
        yield "</ul>"
    yield '<h2>Families</h2><div class="scroll"><table><thead><tr>'
    yield "".join(
        f'<th scope="col">{each}</th>'
        for each in (
            *("family", "owner", "type", "keys", "bytes", "±", "without TTL", "oldest"),
            *("garbage", "items", "frees"),
        )
    )
    yield "</tr></thead><tbody>"
    yield from map(_line, report["families"])
    yield "</tbody></table></div>"
    remarks = [*_remarks(report), *map(safe, report["notes"])]
    if remarks:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{each}</li>" for each in remarks) + "</ul>"


def _way(way: Mapping[str, Any]) -> str:
    finds = " ".join(map(safe, way["finds"]))
    does = "ends" if way["kinds"] == ["no TTL"] else "removes"
    return (
        f"<li>{_code('counts', way['line'])}{_code(does, way['removes'])}"
        f'{safe(way_text(way))}. <span class="soft">{finds}</span></li>'
    )


def _code(does: str, line: str) -> str:
    shown = html.escape(visible(line, 1_000))
    return f'<div class="do"><span>{does}</span><code>{shown}</code></div>'


def _hint(hint: Mapping[str, Any]) -> str:
    line = html.escape(visible(hint["install"], 1_000))
    said = html.escape(visible(hint["says"], 1_000))
    return f"<li><code>{safe(hint['family'])}</code>: {said}<br><code>{line}</code></li>"


def _line(family: Mapping[str, Any]) -> str:
    kind = family["garbage"]
    sure = [each for each in family["findings"] if each["kind"] == kind]
    cells = [
        safe(family["family"]),
        safe(owner_text(family)),
        safe("/".join(family["types"]) or "-"),
        f"{family['keys']:,}",
        size_text(family["bytes"][0]) if family["measured"] else "-",
        error_text(family["bytes"]),
        safe(endless_text(family)),
        safe(oldest_text(family)),
        f'<span class="{kind}">{kind}</span>' if kind in ("certain", "likely") else "none",
        safe(items_text(sure)),
        safe(frees_text(sure)) if sure else "",
    ]
    return "<tr>" + "".join(f"<td>{each}</td>" for each in cells) + "</tr>"


def _remarks(report: Mapping[str, Any]) -> Iterator[str]:
    for family in report["families"]:
        for each in family["findings"]:
            name = f"<code>{safe(family['family'])}</code>"
            if each["kind"] == "reported" and each["items"]:
                amount = amount_text(items_of(each), each["unit"])
                yield f"{name}: {safe(amount)}. {safe(each['finds'])}"
            if each["unknown"]:
                yield (
                    f"{name}: {each['unknown']:,} items that the rule {safe(each['rule'])} does not"
                    f" know ({safe(each['why_unknown'])}); they are never touched"
                )
