"""The turn of the long tests: which part CI runs next, and when each has last been green.

Each landing runs the quick checks and one part of the rest, the one whose record in .ci/parts.toml
is the oldest. A green run by hand writes the record, and the landing commits it. A record counts
landings, since CI's clone has no history to ask.

    python scripts/parts.py list          each part, what it costs, and its record
    python scripts/parts.py next          the name of the part whose turn it is
    python scripts/parts.py run NAME      run it, by its name or number; a green run is recorded
    python scripts/parts.py smoke         run the smoke of each part whose folders have changed
    python scripts/parts.py check         fail if a record is too old, or a repeated failure is
    python scripts/parts.py landed        count a landing, after all of .ci/run was green
    python scripts/parts.py durations DIR write what was measured, from which the parts are cut
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support import again, parts, processes  # noqa: E402 - the tests' folder had to be found first

RECORDS = ROOT / ".ci" / "parts.toml"
MATRIX = ROOT / "scripts" / "matrix.toml"
VERSIONS = "versions"
HEAD = """\
# Which part of the long tests runs next: the one whose record is the oldest. scripts/parts.py reads
# and writes this file: see CONTRIBUTING.md.
#
# number: of the landing that this file belongs to. before: what the folders held at the
# landing before, by git's names for it. part: its last green run, by commit, date and landing; a
# part that never ran has no commit, and counts from the landing at which it came.
"""
# What all parts rest on: a change there runs the smoke of each.
SHARED = (
    "lua/layout",
    "lua/shared",
    "tests/conftest.py",
    "tests/support",
    "workstealing/store",
    "workstealing/structures/layout.py",
    "workstealing/structures/structure.py",
)
# Tests whose folder has another name than the code's.
CODE_OF = {
    "browser": ("workstealing/dashboard",),
    "laws": ("workstealing/recruiting",),
    "simulation": ("workstealing/recruiting",),
    "suite": ("scripts",),
    "upgrades": ("workstealing/structures",),
}
CONTRACTS = ("jobs", "lua", "tests/jobs", "tests/structures", "workstealing/structures")
PASSED = re.compile(rb"^=*\s*(?:\d+ failed, )?(\d+) passed\b")


class Failed(Exception):
    """A check that does not hold; the text is one sentence."""


@dataclass(frozen=True)
class Record:
    """The last green run of a part."""

    landing: int
    commit: str = ""
    date: str = ""


@dataclass
class Records:
    """What .ci/parts.toml holds."""

    number: int = 0
    before: dict[str, str] = field(default_factory=dict)
    part: dict[str, Record] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Records:
        """Read the file's text."""
        said = tomllib.loads(text)
        records = {name: Record(**each) for name, each in said.get("part", {}).items()}
        return cls(said["number"], said.get("before", {}), records)

    def written(self) -> str:
        """Return the file's text."""
        lines = [HEAD, f"number = {self.number}\n", "\n[before]\n"]
        lines += [f'"{path}" = "{name}"\n' for path, name in sorted(self.before.items())]
        for name in names():
            each = self.part[name]
            lines.append(f"\n[part.{name}]\nlanding = {each.landing}\n")
            if each.commit:
                lines.append(f'commit = "{each.commit}"\ndate = "{each.date}"\n')
        return "".join(lines)

    def complete(self) -> Records:
        """Return the same with a record for each part there is, and for no other."""
        of = {name: self.part.get(name, Record(self.number)) for name in names()}
        return replace(self, part=of)

    def next(self) -> str:
        """Return the part with the oldest record; one that never ran comes first."""
        order = names()
        return min(
            order,
            key=lambda name: (
                bool(self.part[name].commit),
                self.part[name].landing,
                self.part[name].date,
                order.index(name),
            ),
        )

    def overdue(self) -> list[str]:
        """Return the parts whose record is older than twice as many landings as there are parts."""
        most = 2 * len(self.part)
        return [name for name, each in self.part.items() if self.number - each.landing > most]


def read() -> Records:
    """Return the records of this checkout."""
    return Records.read(RECORDS.read_text("utf-8")).complete()


def versions() -> dict[str, list[str]]:
    """Return the parts of the matrix: name -> the environments and neighbours in it."""
    table = tomllib.loads(MATRIX.read_text("utf-8"))
    found: dict[str, list[str]] = {}
    for row in (*table["environments"], *table["beside"]):
        name = f"{VERSIONS}-{row['part']}"
        found.setdefault(name, []).append(row.get("name") or row["package"])
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Return the names of all parts in the order of their numbers, which begin with 1."""
    return [*(each.name for each in parts.parts()), *versions()]


def named(word: str) -> str:
    """Return the name of a part from its name or number. Raises: Failed."""
    all_of_them = names()
    if word.isdigit() and 0 < int(word) <= len(all_of_them):
        return all_of_them[int(word) - 1]
    if word not in all_of_them:
        raise Failed(
            f"there is no part {word!r}: PART is a number from 1 to {len(all_of_them)},"
            f" or one of {', '.join(all_of_them)}"
        )
    return word


# ---- what belongs to a part ----------------------------------------------------------------------


def own(name: str) -> list[str]:
    """Return the paths whose change runs a part's smoke: its tests' folders, and their code's."""
    if name.startswith(VERSIONS):
        return ["constraints.txt", "pyproject.toml", "scripts/matrix.py", "scripts/matrix.toml"]
    (part,) = [each for each in parts.parts() if each.name == name]
    if part.kind in parts.SERVERS.values():
        return list(CONTRACTS)
    found: set[str] = set()
    for file in part.files():
        folder = Path(file).relative_to("tests").parent
        candidates = {f"tests/{folder}", f"workstealing/{folder}", f"lua/{folder.name}"}
        candidates |= {str(folder), f"{folder}.py", *CODE_OF.get(str(folder), ())}
        found |= {each for each in candidates if each != "." and (ROOT / each).exists()}
    return sorted(found)


def trees(commit: str = "HEAD") -> dict[str, str]:
    """Return git's names of what the parts' paths hold in a commit; a path that is absent has none.

    Of a commit that is there: no history is read.
    """
    paths = sorted({*SHARED, *(path for name in names() for path in own(name))})
    said = git("ls-tree", commit, "--", *paths)
    return {line.partition("\t")[2]: line.split()[2] for line in said.splitlines()}


def changed(records: Records, now: Mapping[str, str]) -> list[str]:
    """Return the parts whose folders, or what all share, differ from those at the last landing."""

    def differs(paths: Sequence[str]) -> bool:
        return any(records.before.get(path) != now.get(path) for path in paths)

    return [name for name in names() if differs(SHARED) or differs(own(name))]


def git(*words: str) -> str:
    """Return what git says. Raises: Failed."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


# ---- running -------------------------------------------------------------------------------------


def run(command: Sequence[str]) -> tuple[int, int]:
    """Run a command, show its words, and return its status and how many tests passed."""
    passed = 0
    # It ends with this process, and the run's sweeper ends the rest: scripts/test.sh.
    with processes.spawn(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            passed += sum(map(int, PASSED.findall(line)))
    return process.returncode, passed


def run_part(name: str, more: Sequence[str]) -> tuple[int, int]:
    """Run all of a part."""
    if name.startswith(VERSIONS):
        number = name.rpartition("-")[2]
        return run(["bash", "scripts/test.sh", "matrix", "1", "--part", number, *more])
    workers = os.environ.get("TEST_WORKERS", "3")
    return run(["bash", "scripts/test.sh", name, workers, *more])


def run_smoke(chosen: Sequence[str]) -> tuple[int, int]:
    """Run the smoke of several parts: those of pytest in one go, which collects once."""
    status, passed = 0, 0
    plain = [each for each in chosen if each != parts.CASSANDRA and not is_version(each)]
    if plain:
        workers = os.environ.get("TEST_WORKERS", "3")
        status, passed = run(["bash", "scripts/test.sh", f"smoke:{','.join(plain)}", workers])
    if parts.CASSANDRA in chosen:
        (part,) = [each for each in parts.parts() if each.name == parts.CASSANDRA]
        more = run(["bash", "scripts/test.sh", parts.CASSANDRA, "1", *part.smoke()])
        status, passed = status or more[0], passed + more[1]
    if any(map(is_version, chosen)):
        more = run(["bash", "scripts/test.sh", "matrix", "1", "--smoke"])
        status, passed = status or more[0], passed + more[1]
    return status, passed


def is_version(name: str) -> bool:
    """Say whether a part is one of the matrix."""
    return name.startswith(VERSIONS)


def record(name: str) -> str:
    """Write down that a part is green here and now; return a sentence."""
    if dirty := uncommitted():
        return f"no record of {name} was written: {dirty} is not committed"
    records = read()
    date = dt.datetime.now(dt.UTC).date().isoformat()
    records.part[name] = Record(records.number, git("rev-parse", "--short", "HEAD").strip(), date)
    RECORDS.write_text(records.written(), "utf-8")
    return f"{RECORDS.relative_to(ROOT)} says that {name} is green; commit it"


def uncommitted() -> str:
    """Return a path that differs from the last commit, but for the two files that runs write."""
    ours = {str(path.relative_to(ROOT)) for path in (RECORDS, again.PATH)}
    for line in git("status", "--porcelain", "--untracked-files=no").splitlines():
        if line[3:] not in ours:
            return line[3:]
    return ""


# ---- commands ------------------------------------------------------------------------------------


def do_list() -> int:
    """Print a line for each part."""
    records = read()
    costs = {each.name: sum(cost.cpu for cost in each.files().values()) for each in parts.parts()}
    for number, name in enumerate(names(), 1):
        each = records.part[name]
        cpu = f"{costs[name]:5.0f} s of CPU" if name in costs else " " * 14
        seen = f"green at {each.commit}, {each.date}" if each.commit else "not run yet"
        print(f"{number:3} {name:12} {cpu}  landing {each.landing}, {seen}")
    print(f"next: {records.next()}")
    return 0


def do_run(word: str, *more: str) -> int:
    """Run a part, and write its record if it is green, whole, and not CI's own run."""
    name = named(word)
    number = names().index(name) + 1
    begin = time.monotonic()
    status, passed = run_part(name, more)
    seconds = time.monotonic() - begin
    if status == 0 and not passed:
        print(f"FAILED  part {number}, {name}: it ran no test")
        status = 1
    elif status:
        print(f"FAILED  part {number}, {name}: {passed} passed, {seconds:.0f} s")
        commit = read().part[name].commit
        if commit:
            print(f"        It was green at {commit}. Do its failed tests fail there, alone?")
            print(f"        git worktree add FOLDER {commit} && cd FOLDER")
            print('        make test-all TEST_ARGS="TEST ..."')
    else:
        print(f"ok      part {number}, {name}: {passed} passed, {seconds:.0f} s")
        # Under .ci/run, CI is set by hand, too: WORKSTEALING_RECORDS says so.
        if not more and os.environ.get("WORKSTEALING_RECORDS", "yes") == "yes":
            print(f"        {record(name)}")
    return status


def do_smoke() -> int:
    """Run the smoke of what has changed."""
    chosen = changed(read(), trees())
    if not chosen:
        print("ok      smoke: no part's folders have changed since the last landing")
        return 0
    begin = time.monotonic()
    status, passed = run_smoke(chosen)
    if status == 0 and not passed:
        status = 1
    word = "ok     " if status == 0 else "FAILED "
    print(f"{word} smoke of {', '.join(chosen)}: {passed} passed, {time.monotonic() - begin:.0f} s")
    return status


def do_check() -> int:
    """Fail where a part has not run for too long, or a test that fails at times is left alone."""
    records = read()
    wrong = [
        f"{name} has not been green since landing {records.part[name].landing}; this is landing"
        f" {records.number}: run make test-part PART={name}"
        for name in records.overdue()
    ]
    wrong += again.wrong(records.number)
    for line in wrong:
        print(f"FAILED  {line}")
    if not wrong:
        oldest = records.next()
        print(f"ok      no record is too old; the oldest is that of {oldest}")
    return int(bool(wrong))


def do_landed() -> int:
    """Count a landing, once for each commit of the file, after a green run of the whole."""
    if dirty := uncommitted():
        print(f"        no landing was counted: {dirty} is not committed")
        return 0
    path = str(RECORDS.relative_to(ROOT))
    records = read()
    if records.number == Records.read(git("show", f"HEAD:{path}")).number:
        # Where the number last changed is the landing before.
        last = git("log", "-1", "--format=%H", "-G^number = ", "--", path).strip()
        records.before = trees(last)
        records.number += 1
        RECORDS.write_text(records.written(), "utf-8")
    print(f"        this is landing {records.number}; commit {path} with it")
    return 0


def do_durations(folder: str) -> int:
    """Write .ci/durations.json from what the runs of pytest have left in a folder."""
    measured: dict[str, tuple[str, float, float]] = {}
    for path in sorted(Path(folder).glob("*.json")):
        measured |= {name: tuple(each) for name, each in json.loads(path.read_text()).items()}
    if not measured:
        raise Failed(f"nothing was measured: {folder} is empty")
    parts.DURATIONS.write_text(parts.written(measured, parts.durations()), "utf-8")
    for cached in (parts.durations, parts.parts):
        cached.cache_clear()
    RECORDS.write_text(read().written(), "utf-8")
    return do_list()


COMMANDS: dict[str, Callable[..., Any]] = {
    "list": do_list,
    "next": lambda: print(read().next()),
    "run": do_run,
    "smoke": do_smoke,
    "check": do_check,
    "landed": do_landed,
    "durations": do_durations,
}


def main() -> int:
    """Read the arguments, and do it."""
    # What was started here ends with it: see scripts/test.sh.
    processes.die_with_parent()
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__)
        return 2
    try:
        return COMMANDS[sys.argv[1]](*sys.argv[2:]) or 0
    except Failed as error:
        print(f"FAILED  {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
