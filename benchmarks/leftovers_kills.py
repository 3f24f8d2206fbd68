"""The garbage of other programs, whose processes are killed at work: what is lost, what is left.

Processes of each owner are killed at random moments, while recruits, some of which are killed too,
collect its garbage by our rules; see tests/support/killed_owners.py. A live item that is gone is
lost; garbage that no further slices find is left. Both must be 0.
Alone: ``python benchmarks/leftovers_kills.py --kills 10000 --only rq``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

# With -P a program's own folder is not searched.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import Figure, Target, show
from servers import PostgresServer, newest_redis

from support.owners_at_work import OWNERS

KILLS, PACE = 300, 0.06
TESTS = Path(__file__).resolve().parents[1] / "tests"
SAID = ("kills", "recruits", "operations", "checked", "removed", "lost_count", "left_count")


def measure(
    kills: int = KILLS, only: Sequence[str] = (), pace: float = PACE, to: TextIO = sys.stderr
) -> list[Figure]:
    """Kill the processes of each owner so often; return what was lost and left.

    Every few seconds it says how it goes on, so that a run that is cut off has said something.
    """
    figures = []
    for name in only or OWNERS:
        found = _killed(name, kills, pace, to)
        figures.append(_figure(name, found))
        print("result: " + _line(found), file=to, flush=True)
    return figures


def _killed(name: str, kills: int, pace: float, to: TextIO) -> dict[str, Any]:
    """Run the kills of one owner, and say how they go on; return the last that was said."""
    found: dict[str, Any] = {"owner": name}
    with _home(name) as home:
        command = [sys.executable, "-P", "-m", "support.killed_owners", name, home]
        options = ["--kills", str(kills), "--pace", str(pace)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        with subprocess.Popen(
            [*command, *options], env=environment, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout or ():
                found = json.loads(line)
                print(_line(found), file=to, flush=True)
    found["ended_badly"] = process.returncode != 0
    return found


@contextmanager
def _home(name: str) -> Iterator[str]:
    """Lend the server on which an owner lives."""
    if name == "sessions":
        postgres = PostgresServer()
        try:
            yield postgres.url
        finally:
            postgres.stop()
    else:
        with newest_redis() as server:
            yield server.url


def _line(found: dict[str, Any]) -> str:
    counts = ", ".join(f"{found.get(each, 0):,} {each.removesuffix('_count')}" for each in SAID)
    rate = found.get("kills", 0) / max(0.1, found.get("seconds", 0.1))
    names = [*found.get("lost", ()), *found.get("left", ())][:3]
    named = f"; {', '.join(names)}" if names else ""
    clock = time.strftime("%H:%M:%S")
    return f"{clock} {found['owner']}: {counts}, {rate:.0f} kills a second{named}"


def _figure(name: str, found: dict[str, Any]) -> Figure:
    """Return what is wrong: all that was lost, or left, or failed."""
    wrong = sum(found.get(each, 1) for each in ("lost_count", "left_count", "errors"))
    wrong = float(wrong + found["ended_badly"])
    details = {each: float(found.get(each, 0)) for each in (*SAID, "gaps", "seconds")}
    return Figure(
        f"leftovers_kills_{name}",
        *(wrong,) * 3,
        1,
        "live items lost, garbage left, processes that failed by themselves",
        Target(most=0.0),
        details,
    )


def main() -> None:
    """Measure with another number of kills, or some of the owners."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--only", action="append", choices=OWNERS, default=[])
    parser.add_argument("--pace", type=float, default=PACE, help="the mean seconds of a life")
    options = parser.parse_args()
    show(measure(options.kills, options.only, options.pace, sys.stdout))


if __name__ == "__main__":
    main()
