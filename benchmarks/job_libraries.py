"""Small messages put, taken and acknowledged: our queues and job libraries beside a stream group.

Everybody works on one server and by one consumer, in a process that does nothing else (its program
is job_library_sides.py). All put 10,000 messages by batches in turn, then all take them. A figure
is the least batch of ours by the least of the reference: the least is what a busy machine disturbs
the least. In the mode "pinned" the server and that process share one core; else the system places
them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from callers import apart
from figures import Figure, Target
from servers import newest_redis

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "benchmarks" / "job_libraries.txt"
LIBRARIES = ROOT / ".cache" / "job-libraries"
MESSAGES, BATCH = 10_000, 100
MODES = ("pinned", "not_pinned")
REFERENCE = "stream"
# One of ours that has no figure without target in the mode that has targets, and those of others.
OURS = ("shuffle_queue", "fair_queue", "time_shard_queue")
# A take without an ack is no rival: it does less than any of ours.
RIVALS = ("rq", "celery", "dramatiq", "dramatiq_prefetch_16", "taskiq", "bullmq")
WHAT = ("put", "take_ack")


def install() -> str:
    """Install what job_libraries.txt pins, where it is not there. Returns: pip's word if it failed.

    The libraries are in a folder that only this benchmark's child process sees.
    """
    stamp, wanted = LIBRARIES / "stamp", f"{sys.version}\n{PINS.read_text('utf-8')}"
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return ""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--no-deps", "--only-binary", ":all:", "--upgrade"]
    command += ["--target", str(LIBRARIES), "--requirement", str(PINS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1]
    stamp.write_text(wanted, "utf-8")
    return ""


def child_environment() -> dict[str, str]:
    """Return the environment of a process that sees the libraries."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(LIBRARIES), *([before] if before else [])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


Batches = Mapping[str, Mapping[str, list[float]]]
"""Of each side, of put and of take_ack: what a message cost in each batch, in seconds."""


def batches(mode: str, messages: int = MESSAGES, batch: int = BATCH) -> Batches:
    """Measure all sides in a mode, on a server of their own; say the versions on stderr."""
    with newest_redis() as server:
        command = [sys.executable, str(ROOT / "benchmarks" / "job_library_sides.py")]
        command += ["--url", server.url, "--messages", str(messages), "--batch", str(batch)]
        if mode == "pinned":
            cpu = max(os.sched_getaffinity(0))
            apart(server.process.pid, cpu=cpu)
            command += ["--cpu", str(cpu)]
        done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, check=True)
    said = json.loads(done.stdout)
    versions = ", ".join(f"{name} {version}" for name, version in said["versions"].items())
    print(f"job libraries, {mode}: {versions}", file=sys.stderr, flush=True)
    found: Batches = said["costs"]
    return found


def figures_of(mode: str, found: Batches) -> Iterator[Figure]:
    """Return each side beside the stream group, and ours beside the quickest library."""
    for what in WHAT:
        theirs = found[REFERENCE][what]
        for name, costs in found.items():
            target = Target(most=1.5) if mode == "pinned" and name in OURS else None
            if name != REFERENCE:
                title = f"job_libraries_{mode}_{name}_{what}"
                yield _figure(title, "a plain stream group", (costs[what], theirs), target)
        rivals = [name for name in RIVALS if name in found]
        if rivals:
            quickest = min(rivals, key=lambda name: min(found[name][what]))
            for name in OURS:
                pair = (found[name][what], found[quickest][what])
                title = f"job_libraries_{mode}_{name}_{what}_to_quickest"
                target = Target(most=1.0) if mode == "pinned" else None
                yield _figure(title, f"{quickest}, the quickest library", pair, target)


def _figure(
    name: str, reference: str, costs: tuple[list[float], list[float]], target: Target | None
) -> Figure:
    ratios = [ours / theirs for ours, theirs in zip(*costs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    ours, theirs = (min(each) for each in costs)
    details = {"ours_us": round(ours * 1e6, 1), "reference_us": round(theirs * 1e6, 1)}
    value = round(ours / theirs, 3)
    return Figure(
        name, value, round(low, 3), round(high, 3), len(ratios), reference, target, details
    )


def measure() -> list[Figure]:
    """Measure in both modes."""
    if failed := install():
        print(f"without the libraries of {PINS.name}: {failed}", file=sys.stderr, flush=True)
    modes = MODES if hasattr(os, "sched_setaffinity") else MODES[1:]
    return [figure for mode in modes for figure in figures_of(mode, batches(mode))]
