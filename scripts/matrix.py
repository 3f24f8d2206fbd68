"""Runs the core contracts on the oldest and the newest of everything: make test-matrix.

Each environment of scripts/matrix.toml is a folder of .cache/matrix with an interpreter, the wheel
and the packages of its own; it is kept for the next run. The neighbours come after them: packages
that a user has already, each installed beside the wheel by pip in one go, and used with it on one
server. An interpreter or a package that cannot be had is named in one line. Exit status 1 after a
failure; what is missing is one only in a part of CI.

    make test-matrix MATRIX_ARGS="--only oldest newest"
    make test-matrix MATRIX_ARGS="--only arq --list"
    make test-matrix MATRIX_ARGS="--cell 3.13 oldest redis8"
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "matrix"
TABLE: dict[str, Any] = tomllib.loads((ROOT / "scripts" / "matrix.toml").read_text("utf-8"))
PACKAGES: dict[str, dict[str, Any]] = TABLE["packages"]
# What pip says where the index, or a package on it, is out of reach.
UNREACHABLE = re.compile(
    r"No matching distribution|Could not find a version|Connection|Temporary failure|timed out"
    r"|SSLError"
)
# What an environment may have of its own, instead of the table's [install].
WANTED = {"extras", "tools"}
# About itself: version, and whether it is free-threaded.
ABOUT = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2]"
    " + 't' * bool(sysconfig.get_config_var('Py_GIL_DISABLED')), sys.version.split()[0])"
)
INSTALLED = (
    "import json; from importlib import metadata;"
    "print(json.dumps({d.metadata['Name']: d.version for d in metadata.distributions()}))"
)
SMOKE = """
import sys, time
import redis
from workstealing import Outcome
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes
from workstealing.testing import always

url = sys.argv[1]
client = redis.Redis.from_url(url)
client.flushall()
hashes = VolatileHashes(client, namespace="beside", backend="emulated")
assert hashes.hset("item", mapping={"kept": 1, "short": 2}) == 2
assert hashes.hpexpire("item", 20, "short") == [1]
assert hashes.hmget("item", "kept", "short")[0] == b"1"
deadline = time.monotonic() + 60
while hashes.hget("item", "short") is not None:
    assert time.monotonic() < deadline, "the field did not expire"
    time.sleep(0.005)
assert client.hlen("item") == 2, "the field was collected before a slice came"
recruiter = always(seconds=10)
recruiter.install(HashFieldExpiry(hashes), rate=1.0)
outcomes = []
while client.hlen("item") == 2:
    # On a busy machine a reply may come too late for a slice: another one goes on.
    outcomes.append(recruiter.enlist())
    assert time.monotonic() < deadline, f"no slice collected the field: {recruiter.stats()}"
    time.sleep(0.005)
assert Outcome.WORKED in outcomes
assert hashes.hgetall("item") == {b"kept": b"1"}
client.flushall()
"""


class MissingError(Exception):
    """Something cannot be had here; the text says what."""


class FailedError(Exception):
    """Something is here, and does not work; the text says what."""


@dataclass
class Result:
    """What became of one environment."""

    name: str
    status: str = "ok"
    what: str = ""
    seconds: float = 0.0
    versions: dict[str, str] = field(default_factory=dict)


def canonical(requirement: str) -> str:
    """Return the package's name in a requirement, written as the index compares names."""
    name = re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of_constraints() -> dict[str, str]:
    """Return constraints.txt: package -> version."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = (line.partition("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, _, version in pins}


def constraints(environment: dict[str, Any]) -> list[str]:
    """Return what an environment demands of pip, a line for each package."""
    extra = environment.get("pins", [])
    if environment["versions"] == "newest":
        return sorted(extra)
    lines = {name: f"{name}=={version}" for name, version in pins_of_constraints().items()}
    if environment["versions"] == "oldest":
        lines |= {name: f"{name}=={row['oldest']}" for name, row in PACKAGES.items()}
    for name in environment.get("free", ()):
        lines.pop(name, None)
    lines |= {canonical(line): line for line in extra}
    # Newer ones are no matter here, and this one must run on every interpreter.
    lines.pop("pip", None)
    return sorted(lines.values())


# ---- interpreters --------------------------------------------------------------------------------


def candidates(version: str) -> Iterator[str]:
    """Yield programs that may be this Python; the first that is one is taken."""
    # Not the environment that runs this, which has packages: the one that it was made with.
    yield str(Path(sys.base_prefix) / "bin" / f"python{version}")
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    threaded = version.endswith("t")
    for folder in sorted(pyenv.glob(f"{version.removesuffix('t')}*"), reverse=True):
        if folder.name.endswith("t") == threaded:
            yield str(folder / "bin" / "python3")
    if uv := shutil.which("uv"):
        said = subprocess.run(
            [uv, "python", "find", "--offline", "--system", version],
            capture_output=True,
            text=True,
            check=False,
        )
        yield said.stdout.strip()
    path = ROOT / ".cache" / "pythons" / f"{version}.path"
    if path.exists():
        yield path.read_text("utf-8").strip()


@functools.cache
def find_python(version: str) -> str:
    """Return a program that is this version of Python, fetched if need be.

    Raises: MissingError with the reason.
    """
    said = ""
    for fetched in (False, True):
        if fetched:
            done = subprocess.run(
                ["bash", ROOT / "scripts" / "fetch_pythons.sh", version],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            said = (done.stderr.strip().splitlines() or [""])[-1]
        for program in candidates(version):
            if program and Path(program).exists() and about(program)[0] == version:
                return program
    raise MissingError(said or f"python {version} is not on PATH, nor anywhere else")


def about(program: str) -> tuple[str, str]:
    """Return an interpreter's version, as "3.14t", and in full; empty if it does not run."""
    done = subprocess.run([program, "-I", "-c", ABOUT], capture_output=True, text=True, check=False)
    short, _, full = done.stdout.strip().partition(" ")
    return (short, full) if done.returncode == 0 else ("", "")


def first_python(versions: Sequence[str]) -> str:
    """Return the first of several versions that can be had."""
    reasons = []
    for version in versions:
        try:
            return find_python(version)
        except MissingError as error:
            reasons.append(str(error))
            if len(versions) > 1:
                print(f"    missing: {error}", flush=True)
    raise MissingError("; ".join(reasons))


# ---- environments --------------------------------------------------------------------------------


def pip(home: Path, *arguments: str | Path) -> str:
    """Run this project's own pip on another environment.

    Returns: what it prints. Raises: MissingError if something is out of reach; FailedError.
    """
    command = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*command, *arguments, *(options if arguments[0] == "install" else [])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout
    said = (done.stdout + done.stderr).strip()
    (home / "pip.log").write_text(said, "utf-8")
    errors = [line for line in said.splitlines() if "ERROR" in line] or said.splitlines()[-1:]
    line = f"pip {arguments[0]}: {errors[-1]} (the whole is in {home / 'pip.log'})"
    raise (MissingError if UNREACHABLE.search("".join(errors)) else FailedError)(line)


def make_home(name: str, program: str, stamp: object) -> tuple[Path, bool]:
    """Return an environment's folder, and whether it holds already what the stamp stands for."""
    home = CACHE / name
    written = json.dumps([program, about(program)[1], stamp])
    path = home / "stamp"
    if path.exists() and path.read_text("utf-8") == written:
        return home, True
    return fresh(name, program), False


def fresh(name: str, program: str) -> Path:
    """Return the folder of a new environment, in which there is nothing, not even pip."""
    home = CACHE / name
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run([program, "-m", "venv", "--without-pip", home], check=True)
    return home


def keep(home: Path, program: str, stamp: object) -> None:
    """Remember that an environment holds all that the stamp stands for."""
    (home / "stamp").write_text(json.dumps([program, about(program)[1], stamp]), "utf-8")


@functools.cache
def wheel() -> Path:
    """Return the wheel of this checkout; it is built once."""
    folder = CACHE / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["bash", ROOT / "scripts" / "build_wheel.sh", folder], check=True)
    (path,) = folder.glob("*.whl")
    return path


def installed(home: Path) -> dict[str, str]:
    """Return what an environment holds: package -> version."""
    done = subprocess.run(
        [home / "bin" / "python", "-I", "-c", INSTALLED], capture_output=True, text=True, check=True
    )
    return {canonical(name): version for name, version in json.loads(done.stdout).items()}


def series(version: str, like: str) -> tuple[int, ...]:
    """Return as many leading numbers of a version as another one has."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    return tuple(numbers[: len(like.split("."))])


def compared(environment: dict[str, Any], versions: dict[str, str]) -> list[str]:
    """Return a line for each package that is newer than the table says.

    Raises: FailedError for one that is not the oldest where it should be, or held back.
    """
    lines = []
    for name, row in PACKAGES.items():
        version = versions.get(name, "")
        if environment["versions"] == "oldest":
            wanted = row["oldest"]
            if series(f"{version}.0.0", "0.0.0") != series(f"{wanted}.0.0", "0.0.0"):
                raise FailedError(f"{name} is {version or 'not installed'}, not {wanted}")
        elif environment["versions"] == "newest":
            here, known = series(version, row["newest"]), series(row["newest"], row["newest"])
            if here < known and environment["name"] == "newest" and environment["is_newest"]:
                raise FailedError(
                    f"{name} is {version or 'not installed'}, older than {row['newest']}"
                )
            if here > known:
                lines.append(f"{name} {version} is newer than {row['newest']}, the table's newest")
    return lines


def today() -> str:
    """Return the date: the newest version is that of a day."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def run_environment(environment: dict[str, Any], workers: int, result: Result) -> None:
    """Make one environment, and run its tests in it."""
    program = first_python(environment["python"])
    version, full = about(program)
    environment["is_newest"] = version == TABLE["python"]["newest"]
    result.versions["python"] = full + ("t" if version.endswith("t") else "")
    lines = constraints(environment)
    wanted = TABLE["install"] | {each: environment[each] for each in WANTED & set(environment)}
    stamp = [lines, wanted, today() if environment["versions"] == "newest" else ""]
    home, is_ready = make_home(environment["name"], program, stamp)
    extras = ",".join(wanted["extras"])
    if not is_ready:
        (home / "constraints.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        pip(
            home,
            "install",
            *("--constraint", home / "constraints.txt"),
            *(f"{wheel()}[{extras}]", *wanted["tools"]),
        )
        keep(home, program, stamp)
    else:
        pip(home, "install", "--no-deps", "--force-reinstall", wheel())
    pip(home, "check")
    versions = installed(home)
    shown = environment.get("shows", PACKAGES)
    result.versions |= {name: versions.get(name, "-") for name in shown}
    said = "  ".join(f"{name} {version}" for name, version in result.versions.items())
    print(f"    {said}", flush=True)
    for line in compared(environment, versions):
        print(f"    {line}", flush=True)
    # Safe path: the checkout's folder must not stand before the wheel in a child, either.
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "HYPOTHESIS_PROFILE": "dev"}
    variables |= environment.get("variables", {})
    # The halves are those of scripts/test.sh; each environment has its own selection.
    for name in ("PYTHONPATH", "WORKSTEALING_TEST_HALF"):
        variables.pop(name, None)
    if version.endswith("t"):
        # An extension that is not made for it would bring the lock back.
        variables["PYTHON_GIL"] = "0"
    failed = 0
    workers = environment.get("workers", workers)
    tests = environment["tests"]
    for number, selection in enumerate(tests if isinstance(tests, list) else TABLE["tests"][tests]):
        log = home / f"tests-{number}.log"
        command = [home / "bin" / "python", "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        parallel = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        with log.open("w", encoding="utf-8") as out:
            done = subprocess.run(
                [*command, *parallel, *selection],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        text = log.read_text("utf-8", "replace")
        if done.returncode:
            failed += 1
            print(text, flush=True)
        print(f"    {(text.strip().splitlines() or ['pytest said nothing'])[-1]}", flush=True)
    if failed:
        raise FailedError("its tests do not pass; pytest's words are above")


def of_part(part: int) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Return the environments and the neighbours of one of CI's parts."""
    chosen = [each for each in TABLE["environments"] if each["part"] == part]
    environments = [each | {"tests": each.get("ci", each["tests"])} for each in chosen]
    return environments, [each for each in TABLE["beside"] if each["part"] == part]


def cell(python: str, redis: str, server: str) -> dict[str, Any]:
    """Return the environment of a cell of the public CI.

    Arguments:
        python: a version.
        redis: "oldest" or "newest".
        server: a kind of the tests.
    """
    wanted = PACKAGES["redis"][redis]
    chosen = TABLE["cell"].get(server, [f"--part={server}"])
    return {
        "name": f"cell-{python}-{redis}-{server}",
        "python": [python],
        "versions": "newest",
        # The newest is a series, the oldest one release.
        "pins": [f"redis=={wanted}{'.*' if redis == 'newest' else ''}"],
        "tests": [[*chosen, *TABLE["cell"]["tests"]]],
    }


def ends() -> list[dict[str, Any]]:
    """Return the environments of the oldest and of the newest versions."""
    return [each for each in TABLE["environments"] if each["name"] in ("oldest", "newest")]


def resolve(environment: dict[str, Any], _: object, result: Result) -> None:
    """Ask pip whether the wheel and all its extras can be installed, and install nothing."""
    program = first_python(environment["python"])
    home = fresh(f"resolve-{environment['name']}", program)
    (home / "constraints.txt").write_text("\n".join(constraints(environment)), "utf-8")
    extras = ",".join(TABLE["install"]["extras"])
    pip(
        home,
        "install",
        *("--dry-run", "--constraint", home / "constraints.txt", f"{wheel()}[{extras}]"),
    )
    result.what = "pip finds versions for all of them"


# ---- neighbours ----------------------------------------------------------------------------------


def run_beside(row: dict[str, str], url: str, result: Result) -> None:
    """Install a package beside the wheel as a user would, and use both on one server."""
    program = find_python(".".join(map(str, sys.version_info[:2])))
    # Packages look for their own files by patterns, in which a bracket has a meaning.
    name = canonical(row["package"])
    home = fresh(f"beside-{name}", program)
    report = pip(home, "install", "--dry-run", "--report", "-", row["package"])
    pip(home, "install", wheel(), row["package"])
    pip(home, "check")
    versions = installed(home)
    result.versions |= {each: versions.get(each, "-") for each in (name, "redis")}
    # It would resolve as well if pip had to go back to a release of years ago.
    found = [each["metadata"] for each in json.loads(report)["install"]]
    alone = {canonical(each["name"]): each["version"] for each in found}
    if alone[name] != versions[name]:
        raise FailedError(f"pip chose {name} {versions[name]}; without us it is {alone[name]}")
    for text in (SMOKE, f"import sys\nurl = sys.argv[1]\n{row['uses']}"):
        done = subprocess.run(
            [home / "bin" / "python", "-P", "-c", text, url],
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(done.stdout + done.stderr, flush=True)
            raise FailedError(f"it was installed, but: {done.stderr.strip().splitlines()[-1]}")
    print("    " + "  ".join(f"{name} {v}" for name, v in result.versions.items()), flush=True)


# ---- the whole -----------------------------------------------------------------------------------


def run(environments: Sequence[dict[str, Any]], beside: Sequence[dict[str, str]]) -> list[Result]:
    """Run all that was asked for; a failure of one leaves the others to run."""
    workers = max(2, min(4, os.cpu_count() or 1))
    results = [_timed(each["name"], run_environment, each, workers) for each in environments]
    if beside:
        sys.path.insert(0, str(ROOT / "tests"))
        from support.servers import RedisServer, find_server

        with RedisServer(find_server("redis", 7), 7) as server:
            results += [_timed(row["package"], run_beside, row, server.url) for row in beside]
    return results


def _timed(name: str, step: Any, row: Any, last: Any) -> Result:
    print(f"=== {name}", flush=True)
    result, begin = Result(name), time.monotonic()
    try:
        step(row, last, result)
    except MissingError as error:
        result.status, result.what = "missing", str(error)
    except (FailedError, subprocess.CalledProcessError) as error:
        result.status, result.what = "FAILED", str(error)
    result.seconds = time.monotonic() - begin
    return result


def print_summary(results: Iterable[Result]) -> None:
    """Print a line for each environment."""
    print("\n=== matrix")
    for result in results:
        versions = result.versions if "python" not in result.versions else {}
        shown = " ".join(f"{name} {version}" for name, version in versions.items())
        if "python" in result.versions:
            shown = f"Python {result.versions['python']}"
        print(f"{result.status:8} {result.name:18} {result.seconds:5.0f} s  {result.what or shown}")


def main() -> int:
    """Read the arguments, run, and say how it went."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these environments alone")
    parser.add_argument("--part", type=int, help="those of CI's part; none may be missing")
    parser.add_argument(
        "--cell",
        nargs=3,
        metavar=("PYTHON", "oldest|newest", "SERVER"),
        help="the contracts with this Python and redis-py, on this kind of server",
    )
    parser.add_argument("--smoke", action="store_true", help="let pip resolve the two ends alone")
    parser.add_argument("--list", action="store_true", help="name what would run, and end")
    options = parser.parse_args()
    environments, beside = TABLE["environments"], TABLE["beside"]
    if options.part is not None:
        environments, beside = of_part(options.part)
        if not environments and not beside:
            parser.error(f"no environment belongs to part {options.part}")
    if options.cell:
        environments, beside = [cell(*options.cell)], []
    if options.only:
        known = {each["name"] for each in environments} | {each["package"] for each in beside}
        if unknown := set(options.only) - known:
            parser.error(
                f"no environment {sorted(unknown)[0]!r}; there are {', '.join(sorted(known))}"
            )
        environments = [each for each in environments if each["name"] in options.only]
        beside = [each for each in beside if each["package"] in options.only]
    if options.list:
        for each in environments:
            print(f"{each['name']:18} Python {' or '.join(each['python'])}, {each['versions']}")
        for each in beside:
            print(f"{each['package']:18} beside the wheel")
        return 0
    CACHE.mkdir(parents=True, exist_ok=True)
    if options.smoke:
        results = [_timed(each["name"], resolve, each, None) for each in ends()]
    else:
        results = run(environments, beside)
    print_summary(results)
    strict = options.smoke or options.cell or options.part is not None
    bad = [each for each in results if each.status in {"FAILED", *(["missing"] if strict else [])}]
    print(f"{len(results) - len(bad)} passed, {len(bad)} failed")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
