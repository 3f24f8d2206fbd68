"""What tests of the dashboard share: an app, names that attack, an hour in the ledger."""

from __future__ import annotations

import math
import re
from typing import Any

import flask

from workstealing.dashboard import create_dashboard
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import (
    Process,
    minute_key,
    namespace_of,
    process_text,
    processes_key,
)
from workstealing.structures import VolatileHashes

TOKEN = "an admin's token of the tests"
VIEW_TOKEN = "a viewer's token of the tests"

HOSTILE = {
    "script": "<script>document.title='pwned'</script>",
    "image": "<img src=x onerror=\"document.title='pwned'\">",
    "quotes": "\"'><b>bold</b>",
    "json": "</script><script>document.title='pwned'</script>",
    "template": "{{ 7*7 }}{% for x in y %}",
    "lines": "one\r\ndata: {}\n\nevent: evil\ntwo",
    "rtl": "safe\u202egnp.exe\u2066\u200f",
    "null": "nul\x00\x1b[31m",
}


def make_app(recruiter: Any, client: Any, **options: Any) -> flask.Flask:
    """Return an app with a dashboard at /ws."""
    app = flask.Flask(__name__, static_folder=None)
    app.register_blueprint(create_dashboard(recruiter, client, **options), url_prefix="/ws")
    app.testing = True
    return app


def csrf_of(html: str) -> str:
    """Return the CSRF token of a page's forms."""
    found = re.search(r'name="csrf" value="([0-9a-f]{64})"', html)
    assert found is not None
    return found[1]


def write_minute(client: Any, minute: int, fields: dict[str, Any], name: str = "default") -> None:
    """Write a minute into a ledger, as a fleet would have."""
    hashes = VolatileHashes(client, namespace=namespace_of(name))
    hashes.hsetex(minute_key(name, minute), mapping=fields, ex=3600)


def write_processes(
    client: Any, *processes: Process, name: str = "default", ago: float = 0.0
) -> None:
    """Let processes report to a ledger now, or so many seconds ago."""
    hashes = VolatileHashes(client, namespace=namespace_of(name))
    now = int(client.time()[0])
    for each in processes:
        each.reported = now - ago
        each.every = each.every or 30.0
        field = f"{each.host}:{each.pid}"
        hashes.hsetex(processes_key(name), mapping={field: process_text(each)}, ex=180)


def kill(ledger: Ledger) -> None:
    """End a ledger's thread as a kill of its process would: nobody takes it off the list."""
    ledger._closed = True
    ledger._wake.put(None)


def write_hour(client: Any, jobs: dict[str, dict[str, Any]], minutes: int = 60) -> None:
    """Write the last hour of a fleet of four.

    Arguments:
        jobs: by name, {figure: number, or a function of the minute's number, 0 to 59}.
    """
    now = int(client.time()[0])
    present = now // 60 * 60
    write_processes(client, *(Process("web-1", pid, "1.0", now - 3600.0) for pid in range(4)))
    for number in range(60 - minutes, 60):
        # The present minute is not over.
        share = max(1, now - present) / 60 if number == 59 else 1.0
        enlisted = 41_000 + 9_000 * math.sin(number / 7) + 1_500 * (number * 7 % 5)
        fields: dict[str, Any] = {"processes": 4, "enlisted": int(enlisted * share)}
        for job, figures in jobs.items():
            for figure, value in figures.items():
                said = value(number) if callable(value) else value
                if isinstance(said, int):
                    said = round(said * share)
                if said is not None:
                    fields[f"{figure}:{job}"] = said
        write_minute(client, present - 60 * (59 - number), fields)
