"""A fleet is upgraded process by process: two installed releases use the same structures."""

from __future__ import annotations

import contextlib
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

import workstealing
from support.faulty_server import FaultyServer, KillSwitch
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import spawn
from support.proof import seed, tried
from support.servers import RedisServer
from workstealing.errors import Aborted
from workstealing.jobs import ShuffleQueueReaper
from workstealing.recruiting import Slice
from workstealing.structures import Log, ShardedIck, ShuffleQueue, VolatileHashes

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "tests" / "support" / "release_driver.py"
# The release before is this commit of the repository: before many public names changed.
BEFORE = "4e74f29"
# Of the upgrade whose processes are killed.
STEPS = 60
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "workstealing", "jobs", "lua")


class Release:
    """A process of an installed release.

    Arguments:
        python: its interpreter.
        server: where it connects to.
        protocol: of its client.
    """

    def __init__(self, python: Path, server: RedisServer | FaultyServer, *protocol: int) -> None:
        self._process = spawn(
            [python, "-P", DRIVER, str(server.port), *map(str, protocol)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

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
    return unpacked(folder)


def unpacked(folder: Path) -> Path:
    """Install the wheel of a folder in an environment of its own; return the interpreter."""
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
    """The wheel that users get."""
    folder = tmp_path_factory.mktemp("this")
    subprocess.run(["bash", ROOT / "scripts" / "build_wheel.sh", folder], check=True)
    return unpacked(folder)


@pytest.fixture(scope="module")
def checkout() -> Path:
    """The checkout itself, as this process runs it."""
    return Path(sys.executable)


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


def place(python: Path) -> str:
    """Return where the package of an interpreter lies."""
    if python == Path(sys.executable):
        return str(workstealing.__file__)
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    return str(packages / "workstealing" / "__init__.py")


def both(pythons: tuple[Path, Path], server: RedisServer) -> Iterator[tuple[Release, Release]]:
    releases = Release(pythons[0], server), Release(pythons[1], server)
    try:
        assert [each.place() for each in releases] == [place(each) for each in pythons]
        yield releases
    finally:
        for each in releases:
            each.stop()


PAIRS = [
    *("before-this", "this-before", "this-following", "following-this"),
    # `make release` runs these two, by the word "checkout".
    *("this-checkout", "checkout-this"),
]


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


DEATH = "a death (SIGKILL) of a process within a rolling upgrade"


class KilledUpgrade:
    """A fleet that is upgraded and set back, with processes that are killed at their commands.

    Beside it this release narrows the queue and resizes the Icks, and processes of the release
    before go on by what they knew. A call of a process that died was done or not.
    """

    def __init__(self, before: Path, this: Path, server: RedisServer, door: FaultyServer) -> None:
        self.pythons, self.door = (before, this), door
        self.client: Any = server.client()
        self.draw = random.Random(seed(4))
        self.kills = 0
        self.hashes: dict[str, dict[str, list[Any]]] = {f"h{n}": {} for n in range(4)}
        self.messages: set[int] = set()
        self.members: set[str] = set()
        self.entries: list[str] = []
        ShardedIck(self.client, "sharded", 4).open()
        self.processes = [Release(before, door, 2) for _ in range(3)]

    def step(self, number: int, share: float) -> None:
        """Let a process do something; it may be killed, and then one of some release follows."""
        place = self.draw.randrange(len(self.processes))
        process, request, look = self.processes[place], *self._request(number)
        switch = KillSwitch(self.draw.randint(1, 3), after=self.draw.random() < 0.5)
        switch.victim = process.pid
        if self.draw.random() < 0.5:
            self.door.switch = switch
        try:
            answer = process.ask(*request)
            assert "error" not in answer, (request, answer)
        except (json.JSONDecodeError, BrokenPipeError):
            assert switch.fired, request
        self.door.switch = None
        if switch.fired:
            self.kills += 1
            tried(DEATH)
            process.stop()
            python = self.pythons[self.draw.random() < share]
            self.processes[place] = Release(python, self.door, 2)
        look(switch.fired)

    def _request(self, number: int) -> tuple[tuple[Any, ...], Callable[[bool], None]]:
        """Return what a process is to do, and what is looked at then."""
        kind = self.draw.randrange(6)
        name, field = self.draw.choice([*self.hashes]), f"f{self.draw.randrange(3)}"
        if kind == 0:
            at = int(time.time()) + 100_000 + number
            after = {**self.hashes[name], field: [field, str(number), at]}
            return ("hash_set", name, field, str(number), at), self._hash_look(name, after)
        if kind == 1:
            after = {each: held for each, held in self.hashes[name].items() if each != field}
            return ("hash_delete", name, field), self._hash_look(name, after)
        if kind == 2:
            return ("write", f"tenant{number % 3}", number), lambda died: self._message_look(
                self.messages | {number}, died
            )
        if kind == 3:
            return ("append", f"entry {number}"), lambda died: self._log_look(number, died)
        if kind == 4:
            wanted = self.members | {f"s{number}"}
            return ("sharded_add", {f"s{number}": 1.0}), lambda died: self._member_look(
                wanted, died
            )
        return ("read",), self._read_look

    def _hash_look(self, name: str, after: dict[str, list[Any]]) -> Callable[[bool], None]:
        def look(died: bool) -> None:
            hashes = VolatileHashes(self.client, "h")
            found = sorted((k.decode(), v.decode()) for k, v in hashes.hgetall(name).items())
            ends = hashes.hexpiretime(name, *(each for each, _ in found)) if found else []
            seen = [[*pair, at] for pair, at in zip(found, ends, strict=True)]
            allowed = [after, self.hashes[name]] if died else [after]
            (self.hashes[name],) = [each for each in allowed if sorted(each.values()) == seen][:1]

        return look

    def _there(self) -> set[int]:
        keys = ShuffleQueue(self.client, "queue").keys
        found = [self.client.xrange(keys.stream(number)) for number in range(64)]
        return {int(fields[b"n"]) for entries in found for _, fields in entries}

    def _message_look(self, wanted: set[int], died: bool) -> None:
        found = self._there()
        assert found in ([wanted, self.messages] if died else [wanted])
        self.messages = found

    def _read_look(self, died: bool) -> None:
        found = self._there()
        # A process that died has acknowledged some, or none; the reaper returns the rest.
        assert found <= self.messages
        assert died or not found or self._in_hand() == len(found)
        self.messages = found

    def _in_hand(self) -> int:
        stats = ShuffleQueue(self.client, "queue").stats("group")
        return int(stats["pending"])

    def _log_look(self, number: int, died: bool) -> None:
        found = [each.decode() for each in Log(self.client, "log", 10).read(0, 1000)]
        wanted = [*self.entries, f"entry {number}"]
        assert found in ([wanted, self.entries] if died else [wanted])
        self.entries = found

    def _member_look(self, wanted: set[str], died: bool) -> None:
        found = self._placed()
        assert found in ([wanted, self.members] if died else [wanted])
        self.members = found

    def _placed(self) -> set[str]:
        core = ShardedIck(self.client, "sharded").core
        names = [core.names(shard) for shard in range(8)]
        keys = [key for each in names for key in (each.pset, each.cset, each.moving)]
        found = [self.client.zrange(key, 0, -1) for key in keys]
        return {member.decode() for members in found for member in members}

    def go_beside(self) -> None:
        """Resize the Icks by a step, and let a reaper of fewer streams do a slice."""
        sharded = ShardedIck(self.client, "sharded")
        if self.members:
            sharded.open()
            layout: Any = sharded.core.layout
            goal = layout.ick_shards if layout.moving_from else self.draw.randint(1, 8)
            with contextlib.suppress(Aborted):
                sharded.resize(goal, limit=5)
            assert self._placed() == self.members
        queue = ShuffleQueue(self.client, "queue", streams=8, max_attempts=10**6)
        options: Any = {"lease": 0.001, "consumer_idle": 0.001}
        ShuffleQueueReaper(queue, random=self.draw.random, **options).perform(Slice(25, 60.0))

    def end(self) -> None:
        """Read what is left, by this release; nothing has been lost."""
        queue = ShuffleQueue(self.client, "queue", streams=8, max_attempts=10**6)
        found = set[int]()
        options: Any = {"lease": 0.001, "consumer_idle": 0.001}
        job, idle = ShuffleQueueReaper(queue, random=self.draw.random, **options), 0
        while idle < 40:
            handled = job.perform(Slice(25, 60.0))
            messages = queue.read_many("group", "last", 100)
            found |= {int(each.fields[b"n"]) for each in messages}
            handled += queue.ack(*messages) if messages else 0
            idle = 0 if handled else idle + 1
        assert found == self.messages
        assert queue.length() == 0


def test_nothing_is_lost_by_an_upgrade_whose_processes_are_killed(
    before: Path, this: Path, server: RedisServer
) -> None:
    with FaultyServer(server.port) as door:
        upgrade = KilledUpgrade(before, this, server, door)
        try:
            for number in range(STEPS):
                # Some processes are set back to the release before.
                upgrade.step(number, share=number / STEPS)
                upgrade.go_beside()
            upgrade.end()
        finally:
            for each in upgrade.processes:
                each.stop()
        assert upgrade.kills > STEPS // 8
