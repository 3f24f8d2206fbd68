"""This package's scripts beside the real redis-ick: its own tests, and random calls made to both.

Needs Ruby with the gems redis, redis-namespace and minitest, and redis-ick with redis-key_hash and
redis-script_manager: installed as gems, or as checkouts beside each other, of which
WORKSTEALING_REDIS_ICK names redis-ick's. Its tests are in a checkout only. Ruby's own RUBYLIB may
name further folders.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.servers import RedisServer
from workstealing.store.scripts import load

SUPPORT = Path(__file__).parents[2] / "support"
SCRIPTS = ("ick/add", "ick/ack", "ick/exchange", "ick/reserve_on", "ick/stats", "ick/delete")
BESIDE = ("redis-key_hash", "redis-script_manager")
CHECKOUT = "WORKSTEALING_REDIS_ICK"
ONE_TEST = re.compile(r"^Redis::IckTest#(\S+) = [\d.]+ s = (\S)$", re.MULTILINE)
COUNTED = re.compile(r"^(\d+) runs, (\d+) assertions, ", re.MULTILINE)


@dataclass(frozen=True)
class Gem:
    """Where redis-ick is: its folder, and the load path of what it needs."""

    folder: Path
    path: tuple[str, ...]

    def ruby(self, *args: str | Path, server: RedisServer, scripts: Path) -> str:
        """Run Ruby on this gem and give back what it said, errors last."""
        said = subprocess.run(
            ["ruby", *before(self.path), *map(str, args)],
            env={
                **os.environ,
                "REDIS_URL": f"redis://127.0.0.1:{server.port}/0",
                "WORKSTEALING_SCRIPTS": str(scripts),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return said.stdout + said.stderr


def before(path: Sequence[str]) -> list[str]:
    # Before 3.2 Ruby does not load Set by itself, which redis-script_manager takes for granted. The
    # client goes first, because redis-key_hash declares a class of errors of its.
    return ["-W0", *(part for folder in path for part in ("-I", folder)), "-rset", "-rredis"]


def find_gem(needed: Sequence[str]) -> Gem:
    """Find redis-ick and what a test requires; the test is skipped, with the reason, without it."""
    if shutil.which("ruby") is None:
        pytest.skip("no Ruby here: apt-get install ruby ruby-redis ruby-redis-namespace")
    named = os.environ.get(CHECKOUT)
    if named is None:
        found = subprocess.run(
            ["gem", "which", "redis/ick"], capture_output=True, text=True, check=False
        )
        if found.returncode:
            pytest.skip(f"redis-ick is not installed as a gem, and {CHECKOUT} names no checkout")
        named = str(Path(found.stdout.strip()).parents[2])
    folder = Path(named).absolute()
    if not (folder / "lib" / "redis" / "ick.rb").exists():
        pytest.skip(f"{CHECKOUT} names {folder}, which has no lib/redis/ick.rb")
    libraries = (folder / "lib", *(folder.parent / name / "lib" for name in BESIDE))
    path = (*(str(each) for each in libraries if each.is_dir()), str(folder / "test"))
    for library in needed:
        tried = subprocess.run(
            ["ruby", *before(path), "-e", f"require '{library}'"],
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode:
            why = tried.stderr.strip().splitlines()[:1]
            pytest.skip(
                f"Ruby cannot load {library} ({''.join(why)}): install its gem, put a checkout of"
                f" it beside {folder}, or name its lib folder in RUBYLIB"
            )
    return Gem(folder, path)


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps({name: load(name).body for name in SCRIPTS}))
    return file


def counted(text: str) -> tuple[int, int]:
    found = COUNTED.search(text)
    assert found, text
    return int(found[1]), int(found[2])


def used(text: str) -> set[str]:
    found = re.search(r"^scripts of workstealing: (.*)$", text, re.MULTILINE)
    assert found, text
    return set(json.loads(found[1]))


@pytest.mark.real
def test_each_test_of_redis_icks_that_holds_by_its_own_lua_holds_by_our_scripts(
    redis7: RedisServer, scripts: Path
) -> None:
    gem = find_gem(("redis/ick", "minitest", "redis/key_hash", "redis/namespace"))
    tests = gem.folder / "test" / "redis" / "ick_test.rb"
    if not tests.exists():
        pytest.skip(f"no tests of redis-ick in {gem.folder}: {CHECKOUT} must name a checkout")
    said = {}
    for side, args in (("gem", ()), ("ours", ("-r", SUPPORT / "redis_ick_shim.rb"))):
        redis7.wipe()  # with one seed both sides draw the same names of keys
        said[side] = gem.ruby(*args, tests, "-v", "--seed", "1", server=redis7, scripts=scripts)
    held = {
        side: {name for name, how in ONE_TEST.findall(text) if how == "."}
        for side, text in said.items()
    }
    # A test that finds no server returns at once: that has a run, and no assertion.
    runs, assertions = counted(said["gem"])
    assert runs >= 50, said["gem"]
    assert assertions >= 400, said["gem"]
    # A newer Ruby or client may break some of the gem's tests by itself: they say nothing of ours.
    assert held["gem"] - held["ours"] == set(), said["ours"]
    assert counted(said["ours"])[1] >= assertions, said["ours"]
    assert used(said["ours"]) == set(SCRIPTS), "the comparison must have run by our scripts"


@pytest.mark.real
@pytest.mark.parametrize("seed", [1, 2])
def test_random_calls_have_the_same_answers_and_leave_the_same_behind(
    redis7: RedisServer, scripts: Path, seed: int
) -> None:
    gem = find_gem(("redis/ick",))
    beside = SUPPORT / "redis_ick_beside.rb"
    text = gem.ruby(beside, str(seed), "1000", server=redis7, scripts=scripts)
    assert "\ncalls: 1000, differences: 0\n" in f"\n{text}", text
    assert used(text) == set(SCRIPTS)


@pytest.mark.real
def test_random_calls_find_a_script_that_differs(redis7: RedisServer, scripts: Path) -> None:
    gem = find_gem(("redis/ick",))
    spoiled = json.loads(scripts.read_text())
    # Of the four things that once differed: a size of nought put nothing back.
    spoiled["ick/exchange"] = (
        "if ARGV[1] == '0' and ARGV[2] == '1' then ARGV[2] = '0' end\n" + spoiled["ick/exchange"]
    )
    scripts.write_text(json.dumps(spoiled))
    beside = SUPPORT / "redis_ick_beside.rb"
    text = gem.ruby(beside, "1", "1000", server=redis7, scripts=scripts)
    assert re.search(r"^calls: \d+, differences: 3$", text, re.MULTILINE), text
