"""Run the benchmarks: ``make bench``, or ``python benchmarks/run.py --help``."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

if "--without-hiredis" in sys.argv:
    # redis-py looks for it when it is imported, and falls back to its own parser.
    sys.modules["hiredis"] = None  # type: ignore[assignment]

import cached
import collecting
import enlist
import entry_bytes
import fair_queue
import hash_size
import ick
import job_libraries
import leftovers
import leftovers_kills
import leftovers_tags
import leftovers_time
import log
import log_seek
import log_size
import longest_scripts
import round_trips
import shuffle_queue
import shuffle_queue_pickup
import spark_epilogue
import spark_redis
import spark_sweeps
import spark_throughput
import sql_expiry
import survey
import time_shard_cassandra
import time_shard_sweeper
import web
from figures import Figure, show
from redis.utils import HIREDIS_AVAILABLE
from servers import newest_redis

RESULTS = Path(__file__).resolve().parents[1] / "bench-results"


def _on_a_server(measure: Callable[[Any], list[Figure]]) -> Callable[[], list[Figure]]:
    def run() -> list[Figure]:
        with newest_redis() as server:
            return measure(server)

    return run


GROUPS: dict[str, Callable[[], list[Figure]]] = {
    "enlist": enlist.measure,
    "cached": _on_a_server(cached.measure),
    "round-trips": _on_a_server(round_trips.measure),
    "collecting": _on_a_server(collecting.measure),
    "ick": _on_a_server(ick.measure),
    "time-shard-sweeper": _on_a_server(time_shard_sweeper.measure),
    "shuffle-queue": _on_a_server(shuffle_queue.measure),
    "fair-queue": _on_a_server(fair_queue.measure),
    "job-libraries": job_libraries.measure,
    "longest-scripts": _on_a_server(longest_scripts.measure),
    "shuffle-queue-pickup": _on_a_server(shuffle_queue_pickup.measure),
    "spark-epilogue": _on_a_server(spark_epilogue.measure),
    "survey": _on_a_server(survey.measure),
    "web": web.measure,
    "spark-sweeps": spark_sweeps.measure,
    "spark-throughput": _on_a_server(spark_throughput.measure),
    "spark-redis": _on_a_server(spark_redis.measure),
    "leftovers": _on_a_server(leftovers.measure),
    "leftovers-time": leftovers_time.measure,
    "leftovers-kills": leftovers_kills.measure,
    "sql-expiry": sql_expiry.measure,
    "leftovers-tags": _on_a_server(leftovers_tags.measure),
    "cassandra": time_shard_cassandra.measure,
    "entry-bytes": _on_a_server(entry_bytes.measure),
    "hash-size": _on_a_server(hash_size.measure),
    "log": _on_a_server(log.measure),
    "log-size": _on_a_server(log_size.measure),
    "log-seek": _on_a_server(log_seek.measure),
    "log-large": _on_a_server(log_seek.measure_large),
}
# Those that take gigabytes of memory, or many minutes, run only where they are asked for.
ON_DEMAND = ("log-large", "leftovers-kills", "cassandra")


def main() -> None:
    """Measure what was asked for, show it, and write it down."""
    options = _options()
    figures: list[Figure] = []
    started = time.monotonic()
    for name, measure in GROUPS.items():
        if name in (options.only or GROUPS.keys() - ON_DEMAND):
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            figures += measure()
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "hiredis": HIREDIS_AVAILABLE,
        "seconds": round(time.monotonic() - started, 1),
        "figures": [figure.as_json() for figure in figures],
    }
    text = json.dumps(report, indent=2)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(text + "\n", encoding="utf-8")
    if options.json:
        print(text)
        return
    show(figures)
    print(f"written to {RESULTS.name}/{path.name}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--only",
        action="append",
        choices=GROUPS,
        metavar="NAME",
        help=f"one of {', '.join(GROUPS)}",
    )
    parser.add_argument(
        "--without-hiredis", action="store_true", help="let redis-py use its own parser"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
