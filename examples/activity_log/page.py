"""The page /memory: what the same entries take in the log and in a Redis stream, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flask

from activity_log.measuring import Sample

WIDTH, HEIGHT = 640, 180
MOST_MINUTES = 40


@dataclass(frozen=True)
class Shown:
    """What the page shows beside the memory.

    Fields: facts: of Log.stats(); groups: name -> (offset, entries to come, a remark); jobs: of
    Recruiter.stats(); minutes: entries by minute, as Spark has counted them; without_spark: why
    there are none, "" if there are.
    """

    facts: Any
    groups: Mapping[str, tuple[int, int, str]]
    jobs: Mapping[str, Any]
    minutes: Mapping[str, int]
    without_spark: str


PAGE = """
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="2">
<link rel="icon" href="data:,">
<title>The activity log's memory</title>
<style>
  :root { color-scheme: light dark; --text: #1f2933; --dim: #5b6b7b; --line: #dde3e9;
          --ground: #fff; --card: #f6f8fa; --log: #0b7a75; --stream: #c2571a;
          --sealed: #5aa9a4; --open: #b9dcd9 }
  @media (prefers-color-scheme: dark) {
    :root { --text: #e4e9ee; --dim: #9aa8b5; --line: #33404c; --ground: #151b21; --card: #1d252d;
            --log: #3fb8b1; --stream: #f08a4b; --sealed: #2a7f7a; --open: #1f4a48 }
  }
  body { font: 16px/1.45 system-ui, sans-serif; max-width: 44rem; margin: 1.6rem auto;
         padding: 0 1rem; color: var(--text); background: var(--ground) }
  h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem }
  h2 { font-size: 1rem; margin: 1.7rem 0 .4rem }
  p { margin: .2rem 0 } .dim { color: var(--dim); font-size: .88rem }
  .of { display: grid; grid-template-columns: max-content 1fr; gap: .35rem .8rem;
        align-items: center; margin: 1rem 0 0 }
  .bar { height: 1.5rem; border-radius: 3px } .is-log { background: var(--log) }
  .is-stream { background: var(--stream) }
  .figure { color: var(--dim); font-size: .88rem; grid-column: 2; margin-top: -.3rem }
  svg { display: block; width: 100%; height: auto } svg text { fill: var(--dim); font-size: 12px }
  @media (max-width: 30rem) { svg text { font-size: 19px } }
  .blocks { display: flex; height: 1.1rem; border-radius: 3px; overflow: hidden;
            background: var(--card); gap: 1px }
  .is-compressed { background: var(--log) } .is-sealed { background: var(--sealed) }
  .is-open { background: var(--open) }
  .key { display: inline-block; width: .75rem; height: .75rem; border-radius: 2px;
         margin: 0 .3rem 0 .9rem; vertical-align: -1px } .key:first-child { margin-left: 0 }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
  th { text-align: left; font-weight: normal; color: var(--dim); font-size: .88rem }
  td, th { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line) }
  .n { text-align: right }
</style>
<h1>{{ headline }}</h1>
<p class="dim">{{ "{:,}".format(now.entries) }} entries of an access log, as JSON, in the log;
{{ "the same" if now.entries == now.streamed else "{:,} of them".format(now.streamed) }} in a Redis
stream on the same server. By MEMORY USAGE of every key of both, the groups' included.</p>
{% if now.log_bytes %}
<div class="of">
  {% for what, name, size, each in bars %}
  <span>{{ name }}</span>
  <div class="bar is-{{ what }}" style="width: {{ 100 * size / most }}%"></div>
  <span class="figure">{{ "{:,.0f}".format(size / 1024) }} KiB, {{ "%.0f"|format(each) }} bytes an
  entry</span>
  {% endfor %}
</div>
<h2>Bytes an entry, over the last {{ seconds }} seconds</h2>
<svg viewBox="0 0 {{ width }} {{ height }}" role="img"
     aria-label="Bytes an entry over time: the log's line falls as recruits compress blocks.">
  {% for y, label in lines %}
  <line x1="40" x2="{{ width }}" y1="{{ y }}" y2="{{ y }}" stroke="var(--line)"/>
  <text x="34" y="{{ y + 4 }}" text-anchor="end">{{ label }}</text>
  {% endfor %}
  {% for what, points, y, name in curves %}
  <polyline points="{{ points }}" fill="none" stroke="var(--{{ what }})" stroke-width="2.5"
            stroke-linejoin="round"/>
  <text x="{{ width - 4 }}" y="{{ y }}" text-anchor="end"
        style="fill: var(--{{ what }})">{{ name }}</text>
  {% endfor %}
</svg>
{% endif %}
<h2>The log's {{ shown.facts.blocks }} blocks</h2>
<div class="blocks">
  {% for what, number in forms if number %}
  <div class="is-{{ what }}" style="flex: {{ number }}"></div>
  {% endfor %}
</div>
<p class="dim">
  {% for what, number in forms %}<span class="key is-{{ what }}"></span>{{ number }} {{ what }}
  {% endfor %}</p>
<h2>Groups</h2>
<table>
  <tr><th>group<th class="n">next offset<th class="n">to come<th>
  {% for name, (offset, lag, remark) in shown.groups.items() %}
  <tr><td>{{ name }}<td class="n">{{ "{:,}".format(offset) }}<td class="n">{{ "{:,}".format(lag) }}
  <td class="dim">{{ remark }}
  {% endfor %}
</table>
<h2>Recruits</h2>
<table>
  <tr><th>job<th class="n">recruited<th class="n">worked<th class="n">aborted<th class="n">blocks
  {% for name, job in shown.jobs.items() %}
  <tr><td>{{ name }}<td class="n">{{ job.recruited }}<td class="n">{{ job.worked }}<td class="n">
  {{- job.aborted }}<td class="n">{{ job["items"] }}
  {% endfor %}
</table>
<h2>Entries by minute, counted by Spark</h2>
{% if shown.without_spark %}<p class="dim">{{ shown.without_spark }}</p>
{% elif not minutes %}<p class="dim">Its first batch is under way.</p>
{% else %}
<svg viewBox="0 0 {{ width }} 110" role="img" aria-label="Entries by minute">
  {% for x, y, wide, tall, title in minutes %}
  <rect x="{{ x }}" y="{{ y }}" width="{{ wide }}" height="{{ tall }}" fill="var(--log)">
  <title>{{ title }}</title></rect>
  {% endfor %}
  <text x="0" y="106">{{ first_minute }}</text>
  <text x="{{ width }}" y="106" text-anchor="end">{{ last_minute }}</text>
</svg>
{% endif %}
</html>
"""


def render(samples: Sequence[Sample], shown: Shown) -> str:
    """Return the page; in a request of the app."""
    now = samples[-1]
    bars = [
        ("log", "the log", now.log_bytes, now.log_each),
        ("stream", "a Redis stream", now.stream_bytes, now.stream_each),
    ]
    lines, curves = _curves(samples)
    counted = sorted(shown.minutes.items())[-MOST_MINUTES:]
    return flask.render_template_string(
        PAGE,
        now=now,
        shown=shown,
        headline=headline(now),
        bars=bars,
        most=max(now.log_bytes, now.stream_bytes, 1),
        seconds=round(now.seconds - samples[0].seconds),
        width=WIDTH,
        height=HEIGHT,
        lines=lines,
        curves=curves,
        forms=forms(shown.facts),
        minutes=_columns(counted),
        first_minute=counted[0][0].replace("T", " ") if counted else "",
        last_minute=counted[-1][0].replace("T", " ") if counted else "",
    )


def headline(now: Sample) -> str:
    """Say in a sentence what was measured."""
    if not now.log_bytes:
        return "This server does not say what keys take: nothing is measured"
    if not now.streamed:
        return "The stream has no entries yet"
    if now.ratio >= 1:
        return f"A Redis stream takes {now.ratio:.1f} times as much memory as the log"
    return f"The log takes {1 / now.ratio:.1f} times as much memory as a Redis stream"


def forms(facts: Any) -> list[tuple[str, int]]:
    """Return how many blocks have which form."""
    return [
        ("compressed", facts.compressed),
        ("sealed", facts.sealed - facts.compressed),
        ("open", facts.open),
    ]


def _curves(
    samples: Sequence[Sample],
) -> tuple[list[tuple[float, str]], list[tuple[str, str, float, str]]]:
    """Return the lines of the grid, and the curves: class, points, where the name is, the name."""
    top = max(max(each.log_each, each.stream_each) for each in samples) * 1.1 or 1.0
    began, span = samples[0].seconds, max(samples[-1].seconds - samples[0].seconds, 0.001)

    def at(value: float) -> float:
        return round(HEIGHT - 10 - value / top * (HEIGHT - 20), 1)

    curves = []
    readers: list[tuple[str, str, Callable[[Sample], float]]] = [
        ("log", "the log", lambda each: each.log_each),
        ("stream", "a Redis stream", lambda each: each.stream_each),
    ]
    for what, name, read in readers:
        points = " ".join(
            f"{40 + (each.seconds - began) / span * (WIDTH - 42):.1f},{at(read(each))}"
            for each in samples
            if each.streamed
        )
        curves.append((what, points, at(read(samples[-1])) - 7, name))
    step = next(step for step in (20, 50, 100, 200, 500, 1000, 10**9) if top / step <= 5)
    grid = range(0, int(top) + 1, step)
    return [(at(value), str(value)) for value in grid], curves


def _columns(counted: Sequence[tuple[str, int]]) -> list[tuple[float, float, float, float, str]]:
    """Return the columns of the minutes: x, y, width, height, title."""
    if not counted:
        return []
    most, wide = max(number for _, number in counted), WIDTH / len(counted)
    return [
        (
            round(place * wide, 1),
            round(88 - 84 * number / most, 1),
            round(max(wide - 2, 1), 1),
            round(84 * number / most, 1),
            f"{minute}: {number:,}",
        )
        for place, (minute, number) in enumerate(counted)
    ]
