"""Attacks the package again, with a new seed, and adds what was tried to docs/proof.md: make prove.

Each attack is a set of tests that count their tries (tests/support/proof.py). They run for as long
as they are given, over and over, each time with another seed. What they tried, and what was lost,
held or wrong, is added to docs/proof.json, by attack, structure and server, and the tables of
docs/proof.md are made from it. A run that is repeated by --seed is made once, and adds nothing.

    make prove PROVE_ARGS="--only kills --minutes 5"
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import processes  # noqa: E402 - the tests' folder had to be found first

SUMS = ROOT / "docs" / "proof.json"
PAGE = ROOT / "docs" / "proof.md"
BEGIN, END = "<!-- the table: begin -->", "<!-- the table: end -->"
IN_FULL = "The same by structure and server:"


@dataclass(frozen=True)
class Attack:
    """An attack: its name on the command line, how its tests' words begin, and those tests."""

    name: str
    words: tuple[str, ...]
    tests: tuple[str, ...]
    keyword: str = ""


ATTACKS = (
    Attack(
        "kills",
        ("a process killed", "a client cut off"),
        ("tests/laws/test_killed_protocols.py",),
    ),
    Attack(
        "deaths",
        ("a death",),
        ("tests/structures", "tests/jobs", "tests/upgrades"),
        "(kill or dies or die or death or orphan) and not recorded",
    ),
    Attack(
        "consumers",
        ("a consumer of a recorded history",),
        ("tests/structures/fair_queue/test_recorded.py",),
    ),
    Attack(
        "signals",
        ("a signal handler",),
        (
            "tests/laws/test_interruptions.py",
            "tests/structures/durable_keys/test_grants.py",
            "tests/structures/sharded_ick/test_grants.py",
            "tests/structures/shuffle_queue/test_grants.py",
            "tests/structures/time_shard_queue/test_grants.py",
            "tests/structures/volatile_hashes/test_cached_faults.py",
        ),
        "random_moments",
    ),
    Attack(
        "greenlets",
        ("a greenlet killed",),
        (
            "tests/structures/durable_keys/test_grants.py",
            "tests/structures/sharded_ick/test_grants.py",
            "tests/structures/shuffle_queue/test_grants.py",
            "tests/structures/time_shard_queue/test_grants.py",
            "tests/structures/volatile_hashes/test_cached_faults.py",
        ),
        "greenlets",
    ),
    Attack(
        "parity",
        ("a random program", "a call of a random program"),
        ("tests/structures/volatile_hashes/test_parity.py",),
    ),
    Attack(
        "grants",
        (
            *("a reply that is cut off", "a task that is cancelled", "an exception at an opcode"),
            "an answer that does not say",
        ),
        (
            "tests/structures/durable_keys/test_grants.py",
            "tests/structures/log/test_grants.py",
            "tests/structures/sharded_ick/test_grants.py",
            "tests/structures/shuffle_queue/test_grants.py",
            "tests/structures/time_shard_queue/test_grants.py",
        ),
        "not AtRandom",
    ),
    Attack(
        "protocols",
        ("a step of",),
        (
            "tests/jobs/test_moving_namespace.py",
            "tests/jobs/shuffle_queue_reaper/test_narrowing.py",
        ),
    ),
    Attack(
        "cached",
        ("a history of callers",),
        ("tests/structures/volatile_hashes/test_cached_histories.py",),
    ),
    Attack(
        "nonsense", ("nonsense in a place",), ("tests/structures/test_nonsense.py",), "anywhere"
    ),
)


def load() -> dict[tuple[str, str, str], list[int]]:
    """Return the sums: attack, structure and server -> tried, lost, held, wrong."""
    return {(row[0], row[1], row[2]): row[3:] for row in _kept()["sums"]}


def _kept() -> dict[str, Any]:
    """Return the sums as they are kept, and the seeds of the runs by the attack's name."""
    if not SUMS.exists():
        return {"sums": [], "seeds": {}}
    kept: dict[str, Any] = json.loads(SUMS.read_text("utf-8"))
    return kept


def add(
    sums: Mapping[tuple[str, str, str], Sequence[int]], lines: Sequence[str]
) -> dict[tuple[str, str, str], list[int]]:
    """Return the sums with those of a run, which are lines of JSON."""
    total = {key: list(numbers) for key, numbers in sums.items()}
    for line in lines:
        attack, part, server, *numbers = json.loads(line)
        row = total.setdefault((attack, part, server), [0, 0, 0, 0])
        for place, number in enumerate(numbers):
            row[place] += number
    return total


def table(sums: Mapping[tuple[str, str, str], Sequence[int]]) -> str:
    """Return the page's long table, a row for each attack, structure and server."""
    lines = ["| attack | on | server | tried | lost | held | wrong |", "|---" * 7 + "|"]
    for (title, part, server), numbers in sorted(sums.items()):
        cells = [title, part, server or "the test's own", *(f"{each:,}" for each in numbers)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def summary(sums: Mapping[tuple[str, str, str], Sequence[int]]) -> str:
    """Return the page's short table, a row for each attack and one for all."""
    lines = ["| attack | on | servers | tried | lost | held | wrong | again |", "|---" * 8 + "|"]
    for title in sorted({key[0] for key in sums}):
        rows = {key: numbers for key, numbers in sums.items() if key[0] == title}
        (name,) = [each.name for each in ATTACKS if title.startswith(each.words)]
        parts = ", ".join(sorted({part for _, part, _ in rows}))
        servers = {each for _, _, server in rows for each in server.split(", ") if each}
        cells = [
            title,
            parts,
            ", ".join(sorted(servers)) or "the test's own",
            *_said(rows),
            f"`--only {name}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append(f"| **all** |  |  | {' | '.join(_said(sums))} |  |")
    return "\n".join(lines)


def _said(sums: Mapping[tuple[str, str, str], Sequence[int]]) -> list[str]:
    """Return the totals of some rows as texts: tried, lost, held, wrong."""
    return [f"{sum(numbers):,}" for numbers in zip(*sums.values(), strict=True)]


def write(
    sums: Mapping[tuple[str, str, str], Sequence[int]], of: str | None = None, seed: int = 0
) -> None:
    """Write the sums, and the page's tables.

    Arguments:
        of: the name of the attack that was run, and its seed.
    """
    seeds: dict[str, list[int]] = _kept()["seeds"]
    if of is not None:
        seeds.setdefault(of, []).append(seed)
    rows = [json.dumps([*key, *numbers]) for key, numbers in sorted(sums.items())]
    runs = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(seeds.items())]
    text = '{\n"sums": [\n ' + ",\n ".join(rows) + '\n],\n"seeds": {\n ' + ",\n ".join(runs)
    SUMS.write_text(text + "\n}\n}\n", "utf-8")
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(
        f"{before}{BEGIN}\n{summary(sums)}\n\n{IN_FULL}\n\n{table(sums)}\n{END}{after}", "utf-8"
    )


def run(attack: Attack, seed: int, path: Path) -> int:
    """Run the tests of an attack once; return pytest's status."""
    # One process: a worker of xdist would write as well, and in no order.
    command = ["bash", "scripts/test.sh", "all", "0", "-q", f"--proof-to={path}"]
    command += [f"--hypothesis-seed={seed}", *(("-k", attack.keyword) if attack.keyword else ())]
    # It ends with this process, and the run's sweeper ends the rest: scripts/test.sh.
    environment = {"PROVE_KILLS": "250", **os.environ, "PROVE_SEED": str(seed)}
    with processes.spawn([*command, *attack.tests], cwd=ROOT, env=environment) as process:
        return process.wait()


def main() -> int:
    """Read the arguments, attack, and add it up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    known = [attack.name for attack in ATTACKS]
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=known, help=", ".join(known))
    parser.add_argument("--minutes", type=float, default=5.0, help="for each attack; 5 by default")
    parser.add_argument(
        "--seed", type=int, help="make one run with this seed again, and add nothing"
    )
    options = parser.parse_args()
    chosen = [each for each in ATTACKS if not options.only or each.name in options.only]
    seeds = random.SystemRandom()
    path = ROOT / ".cache" / "proof.jsonl"
    path.parent.mkdir(exist_ok=True)
    status = 0
    for attack in chosen:
        until = time.monotonic() + 60 * options.minutes
        seed = options.seed or seeds.randrange(1, 2**31)
        while True:
            print(f"=== {attack.name}, seed {seed}", flush=True)
            path.unlink(missing_ok=True)
            failed = run(attack, seed, path)
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
            if not lines:
                print(f"FAILED  {attack.name} has tried nothing")
                return 1
            tried, lost, held, wrong = _said(add({}, lines))
            print(f"{attack.name}: {tried} tried, {lost} lost, {held} held, {wrong} wrong")
            if options.seed is None:
                write(add(load(), lines), attack.name, seed)
                print("This was added to docs/proof.json and docs/proof.md.")
            if failed:
                print(f"FAILED  {attack.name}: repeat it by --only {attack.name} --seed {seed}")
                status = 1
            if failed or options.seed is not None or time.monotonic() > until:
                break
            seed = seeds.randrange(1, 2**31)
    return status


if __name__ == "__main__":
    sys.exit(main())
