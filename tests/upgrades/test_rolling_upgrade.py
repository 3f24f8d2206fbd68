"""A fleet is upgraded process by process: two installed releases use the same structures."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import RedisServer

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "support" / "release_driver.py"
# The release before is this commit of the repository: before many public names changed.
BEFORE = "4e74f29"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "workstealing", "jobs", "lua")


class Release:
    """A process of an installed release."""

    def __init__(self, python: Path, server: RedisServer) -> None:
        self._process = spawn(
            [python, "-P", DRIVER, str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *request: Any) -> dict[str, Any]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            answer = self.ask(name, *args)
            assert "error" not in answer, f"{name}{args}: {answer['error']}"
            return answer["reply"]

        return call

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def installed(source: Path, folder: Path) -> Path:
    """Build a wheel from the source, and install it in an environment of its own."""
    folder.mkdir()
    build = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
    done = subprocess.run(
        [*build, "--outdir", folder, source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    home = folder / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    (packages,) = home.glob("lib/python*/site-packages")
    install = [sys.executable, "-P", "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, "--target", packages, wheel], check=True, capture_output=True)
    # What the package needs comes from this environment; its own .pth files are not read there.
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def copied(folder: Path) -> Path:
    folder.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def raised(folder: Path, *, readable_from: int = 1, writable_from: int = 1) -> Path:
    """Return a copy of this release whose layouts have the next version."""
    source = copied(folder)
    changed = 0

    def change(path: str, old: str, new: str) -> None:
        nonlocal changed
        file = source / path
        text = file.read_text()
        assert re.search(old, text), (path, old)
        file.write_text(re.sub(old, new, text))
        changed += 1

    layout = "workstealing/structures/layout.py"
    change(layout, r"version: int = 1\b", "version: int = 2")
    change(
        layout,
        r'"readable_from", 1, "writable_from", 1',
        f'"readable_from", {readable_from}, "writable_from", {writable_from}',
    )
    for path in ("durable_keys/commands", "shuffle_queue/names", "volatile_hashes/commands"):
        change(f"workstealing/structures/{path}.py", r"\bversion=1,", "version=2,")
    assert changed == 5
    return source


@pytest.fixture(scope="module")
def this(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("this")
    return installed(copied(folder / "source"), folder / "installed")


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next")
    return installed(raised(folder / "source"), folder / "installed")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    archive = folder / "source.tar"
    done = subprocess.run(
        ["git", "-C", ROOT, "archive", "--output", archive, BEFORE, *SOURCES],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("the release before is not in this clone, which is a shallow one")
    (folder / "source").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder / "source"], check=True)
    return installed(folder / "source", folder / "installed")


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis(7)


def both(pythons: tuple[Path, Path], server: RedisServer) -> Iterator[tuple[Release, Release]]:
    releases = Release(pythons[0], server), Release(pythons[1], server)
    try:
        places = {each.place() for each in releases}
        assert places == {
            str(
                next(each.parent.parent.glob("lib/python*/site-packages"))
                / "workstealing"
                / "__init__.py"
            )
            for each in pythons
        }
        yield releases
    finally:
        for each in releases:
            each.stop()


PAIRS = ["before-this", "this-before", "this-following", "following-this"]


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[tuple[Release, Release]]:
    """Two releases; the first one lays the structures out."""
    first, second = request.param.split("-")
    pythons = request.getfixturevalue(first), request.getfixturevalue(second)
    yield from both(pythons, server)


def test_two_releases_share_every_structure(pair: tuple[Release, Release]) -> None:
    rng = random.Random(5)
    first, second = pair
    at = int(time.time()) + 3600
    hashes: dict[str, dict[str, list[Any]]] = {}
    keys: dict[str, str] = {}
    tracked: set[str] = set()
    icks: set[str] = set()
    shards: set[str] = set()
    written: list[int] = []
    read: list[int] = []
    due: list[str] = []
    taken: list[str] = []
    log: list[str] = []
    for n in range(60):
        # The first one lays out, then each writes and the other one looks.
        one, other = (first, second) if n == 0 or rng.random() < 0.5 else (second, first)
        name, field = f"h{n % 5}", f"f{rng.randrange(4)}"
        one.hash_set(name, field, str(n), at + n)
        hashes.setdefault(name, {})[field] = [field, str(n), at + n]
        assert other.hash_get(name) == sorted(hashes[name].values())
        if n % 7 == 6:
            assert other.hash_delete(name, field) == 1
            del hashes[name][field]
        assert one.hash_get(name) == sorted(hashes[name].values())
        keys[f"k{n % 6}"] = str(n)
        one.key_set(f"k{n % 6}", str(n), 3600)
        assert other.key_get(f"k{n % 6}") == str(n)
        token = one.acquire("lock")
        assert token is not None
        assert other.acquire("lock") is None
        assert other.release("lock", token) is True
        one.track(f"t{n}")
        tracked.add(f"t{n}")
        assert other.is_tracked(f"t{n}") is True
        if n % 3 == 2:
            other.untrack(f"t{n}")
            assert one.is_tracked(f"t{n}") is False
        one.ick_add({f"m{n}": n})
        icks.add(f"m{n}")
        one.sharded_add({f"s{n}": n})
        shards.add(f"s{n}")
        if n % 4 == 3:
            icks -= set(other.ick_take(3))
            shards -= set(one.sharded_take())
        one.write(f"tenant{n % 3}", n)
        written.append(n)
        if n % 5 == 4:
            read += other.read()
        one.put(f"d{n}")
        due.append(f"d{n}")
        log.append(f"entry {n}")
        one.append(f"entry {n}")
        assert other.entries(0) == log
    for _ in range(40):
        icks -= set(second.ick_take(50))
        shards -= set(first.sharded_take())
        read += first.read()
        taken += second.take()
        taken += first.take()
    assert icks == set()
    assert shards == set()
    assert sorted(read) == written
    # Each message once, by either of them.
    assert sorted(taken) == sorted(due)


@pytest.mark.parametrize(("readable", "writable"), [(1, 2), (2, 2)])
def test_this_release_keeps_off_a_layout_that_it_may_not_write(
    tmp_path: Path, this: Path, server: RedisServer, readable: int, writable: int
) -> None:
    source = raised(tmp_path / "source", readable_from=readable, writable_from=writable)
    following = installed(source, tmp_path / "installed")
    at = int(time.time()) + 3600
    for new, old in both((following, this), server):
        new.hash_set("h", "f", "1", at)
        new.key_set("k", "1", 60)
        new.track("t")
        new.sharded_add({"s": 1})
        new.put("d")
        client = server.client()
        data = {key: client.dump(key) for key in client.scan_iter()}
        said = "may read but not write" if readable == 1 else "cannot read"
        writes: list[tuple[Any, ...]] = [
            ("hash_set", "h", "f", "2", at),
            ("key_set", "k", "2", 60),
            ("track", "u"),
            ("sharded_add", {"s2": 1}),
            ("put", "d2"),
        ]
        for write in writes:
            answer = old.ask(*write)
            assert "LayoutError" in answer.get("error", ""), write
            assert said in answer["error"], write
        if readable == 1:
            assert old.hash_get("h") == [["f", "1", at]]
            assert old.key_get("k") == "1"
            assert old.is_tracked("t") is True
        assert {key: client.dump(key) for key in client.scan_iter()} == data
