"""Redis-ick's own tests, run over this package's scripts by a shim of Ruby.

Needs Ruby, the gems that redis-ick's tests take (redis, minitest, redis-key_hash, redis-namespace,
redis-script_manager), and redis-ick with its tests: an installed gem comes without them, so
WORKSTEALING_REDIS_ICK names a checkout.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.servers import RedisServer
from workstealing.store.scripts import load

SHIM = Path(__file__).parents[1] / "support" / "redis_ick_shim.rb"
SCRIPTS = ("ick_add", "ick_commit", "ick_exchange", "ick_reserve_on", "ick_stats", "ick_delete")
NEEDED = ("redis", "minitest", "redis/ick", "redis/key_hash", "redis/namespace")


def checkout() -> Path:
    """Return the folder of redis-ick with its tests; without one the test is skipped."""
    if shutil.which("ruby") is None:
        pytest.skip("Ruby is not installed: apt-get install ruby ruby-redis ruby-redis-namespace")
    named = os.environ.get("WORKSTEALING_REDIS_ICK")
    if named is None:
        found = subprocess.run(
            ["gem", "which", "redis/ick"], capture_output=True, text=True, check=False
        )
        if found.returncode:
            pytest.skip("redis-ick is not installed, and WORKSTEALING_REDIS_ICK names no checkout")
        named = str(Path(found.stdout.strip()).parents[2])
    folder = Path(named)
    if not (folder / "test" / "redis" / "ick_test.rb").exists():
        pytest.skip(f"there are no tests of redis-ick in {folder}: name a checkout of it")
    for library in NEEDED:
        tried = subprocess.run(
            ["ruby", "-I", str(folder / "lib"), "-e", f"require '{library}'"],
            capture_output=True,
            check=False,
        )
        if tried.returncode:
            pytest.skip(f"Ruby does not find {library}, which redis-ick's tests require")
    return folder


@pytest.mark.real
def test_redis_icks_own_tests_hold_over_our_scripts(redis7: RedisServer, tmp_path: Path) -> None:
    folder = checkout()
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps({name: load(name).body for name in SCRIPTS}))
    redis7.client().config_resetstat()
    said = subprocess.run(
        [
            *("ruby", "-W0", "-I", str(folder / "lib"), "-I", str(folder / "test")),
            *("-r", str(SHIM), str(folder / "test" / "redis" / "ick_test.rb")),
        ],
        env={
            **os.environ,
            "REDIS_URL": f"redis://127.0.0.1:{redis7.port}/0",
            "WORKSTEALING_SCRIPTS": str(scripts),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    text = said.stdout + said.stderr
    counted = re.search(
        r"(\d+) runs, (\d+) assertions, (\d+) failures, (\d+) errors, (\d+) skips", text
    )
    assert counted, text
    runs, assertions, *bad = map(int, counted.groups())
    assert bad == [0, 0, 0], text
    # A test that finds no server returns at once: that has a run, and no assertion.
    assert runs >= 50, text
    assert assertions >= 400, text
    used = json.loads(re.search(r"scripts of workstealing: (.*)", text)[1])  # type: ignore[index]
    assert set(used) == set(SCRIPTS), "the comparison must have run by our scripts"
