"""What a log's entries take of memory and of the dump, beside a Redis stream with the same entries.

Each form of the log, and the stream, are filled into an empty server, saved, and loaded again by a
server that starts.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from figures import Figure, Target, speed_figure
from log_sides import fill_log, fill_stream
from servers import RedisServer

from support.log_entries import entries

STORED = 100_000
ROUNDS = 5
FORMS = ("list", "raw", "zlib", "zstd")
STREAM = "stream"
AT_MOST = 0.25
_LOADED = re.compile(r"DB loaded from disk: ([0-9.]+) seconds")


class Size(NamedTuple):
    """Bytes: of all keys by MEMORY USAGE, by which used_memory has grown, and of the dump."""

    counted: int
    used: int
    dump: int


def measure(server: RedisServer, stored: int = STORED) -> list[Figure]:
    """Measure bytes per entry, the dump's size, and how long saving and loading it take."""
    content = entries(stored)
    whats: dict[str, Callable[[Any], None]] = {
        STREAM: lambda client: fill_stream(client, STREAM, content),
        **{form: _filler(content, form) for form in FORMS},
    }
    sizes = {what: _size(server, what, fill) for what, fill in whats.items()}
    times = _times(server, list(whats))
    figures = []
    for form in FORMS:
        for which in Size._fields:
            is_bound = form in ("zlib", "zstd") and which != "dump"
            target = Target(most=AT_MOST) if is_bound else None
            mine, theirs = (getattr(sizes[what], which) for what in (form, STREAM))
            figures.append(_share(f"log_bytes_{form}_{which}", mine, theirs, stored, target))
        for what, costs in (("save", 0), ("load", 1)):
            pair = (times[form][costs], times[STREAM][costs])
            figures.append(speed_figure(f"log_{what}_{form}", "the stream's", pair))
    return figures


def _filler(content: list[bytes], form: str) -> Callable[[Any], None]:
    def fill(client: Any) -> None:
        fill_log(client, form, content, form)

    return fill


def _size(server: RedisServer, what: str, fill: Callable[[Any], None]) -> Size:
    client = server.client()
    client.flushall()
    before = client.info("memory")["used_memory"]
    fill(client)
    # What connections hold is no part of the entries.
    client.client_kill_filter(_type="normal", skipme=True)
    used = client.info("memory")["used_memory"] - before
    pipeline = client.pipeline(transaction=False)
    for key in client.scan_iter(count=1_000):
        pipeline.memory_usage(key, samples=0)
    usage = sum(pipeline.execute())
    client.save()
    kept = _kept(server, what)
    shutil.move(server.directory / "dump.rdb", kept)
    client.flushall()
    return Size(usage, used, kept.stat().st_size)


def _times(server: RedisServer, whats: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """Return the seconds of saving and of loading each, over the rounds."""
    times: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in whats}
    for number in range(ROUNDS):
        for what in whats if number % 2 else reversed(whats):
            shutil.copy(_kept(server, what), server.directory / "dump.rdb")
            server.restart()
            client = server.client()
            started = time.perf_counter()
            client.save()
            times[what][0].append(time.perf_counter() - started)
            times[what][1].append(float(_LOADED.findall(server.log)[-1]))
    return times


def _kept(server: RedisServer, what: str) -> Path:
    return server.directory / f"{what}.rdb"


def _share(name: str, mine: int, theirs: int, stored: int, target: Target | None) -> Figure:
    return Figure(
        name, *[round(mine / theirs, 3)] * 3, 1, "XADD", target,
        {"ours": round(mine / stored, 1), "reference": round(theirs / stored, 1)},
    )  # fmt: skip
