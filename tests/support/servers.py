"""Real Redis and Valkey servers on free loopback ports, each private to the test that started it.

All three kinds (RedisServer, RedisCluster3, FakeRedisServer) answer to `name`, `is_cluster`,
`is_real`, `client()`, `async_client()`, `size()`, `wipe()` and `stop()`: one contract runs on each.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import fakeredis
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from support import leftovers
from support.processes import RUN, end, free_port, spawn
from support.wire import ask

# The library whose clients the tests are given: redis, or valkey for the contracts on its clients.
LIBRARY = os.environ.get("WORKSTEALING_TEST_CLIENTS", "redis")
Client, ClusterClient = (
    getattr(importlib.import_module(LIBRARY), LIBRARY.capitalize() + more)
    for more in ("", "Cluster")
)
AsyncClient, AsyncClusterClient = (
    getattr(importlib.import_module(f"{LIBRARY}.asyncio"), LIBRARY.capitalize() + more)
    for more in ("", "Cluster")
)


def _briefly(kind: type[Any]) -> dict[str, Any]:
    """Return the options by which a client opens its connections in one round trip.

    Without them it also tells its name and version and asks for notices of maintenance. The tests
    open tens of thousands of connections, and these words cost three times as much as the rest.
    """
    known = dict(inspect.signature(kind).parameters)
    if any(each.kind is each.VAR_KEYWORD for each in known.values()):
        # A cluster's client passes them on to its nodes' clients.
        known.update(inspect.signature(Client).parameters)
    # Where there is the first one, the other two are deprecated.
    named = ("driver_info",) if "driver_info" in known else ("lib_name", "lib_version")
    options: dict[str, Any] = {name: None for name in named if name in known}
    if "maint_notifications_config" in known:
        notices = importlib.import_module("redis.maint_notifications")
        options["maint_notifications_config"] = notices.MaintNotificationsConfig(enabled=False)
    return options


_BRIEFLY = {
    each: _briefly(each) for each in (Client, ClusterClient, AsyncClient, AsyncClusterClient)
}
START_SECONDS = 120.0
POLL_SECONDS = 0.005
# redis-py waits for 5 s by default, and tries again: on a busy machine both would be seen.
BUSY: dict[str, Any] = {"socket_timeout": 60.0, "socket_connect_timeout": 60.0}
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "servers"


def _options(kind: type[Any], port: int, options: Mapping[str, Any]) -> dict[str, Any]:
    briefly = _BRIEFLY[kind]
    if (
        kind in (ClusterClient, AsyncClusterClient)
        and int(redis.__version__.partition(".")[0]) < 8
        and str(options.get("protocol")) != "3"
    ):
        # redis-py 7 refuses the option beside RESP 2, and asks for no notices there.
        briefly = {name: briefly[name] for name in briefly if name != "maint_notifications_config"}
    return {"host": "127.0.0.1", "port": port, **BUSY, **briefly, **options}


def client_at(port: int, **options: Any) -> redis.Redis:
    """Return a client of whatever listens at a port, which opens its connections briefly.

    Arguments:
        options: redis-py's.

    The caller closes it.
    """
    client: redis.Redis = Client(**_options(Client, port, options))
    return client


class ServerMissingError(Exception):
    """No binary of the wanted server is on this machine."""


class ServerBrokenError(Exception):
    """A server did not start, or is another one than was asked for."""


class AnyServer(Protocol):
    """What a contract may use of whatever server it runs on."""

    name: str
    is_cluster: bool
    is_real: bool

    def client(self, **options: Any) -> Any:
        """Return a synchronous client; it is closed when the test is over."""
        ...

    def async_client(self, **options: Any) -> Any:
        """Return an asynchronous client; use it by `async with`, which closes it."""
        ...

    def size(self) -> int:
        """Return how many keys there are, in all databases."""
        ...

    def wipe(self) -> None:
        """Remove all data, close the clients handed out, bring back what a test has killed."""
        ...


def find_server(product: str, version: int | str) -> Path:
    """Return the binary of "redis" or "valkey" of a version: 8 for any 8.x, "8.2" for that minor.

    Looks on PATH, then among those that scripts/fetch_servers.sh and fetch_wheel_servers.sh put
    into .cache/servers. Raises: ServerMissingError when there is none.
    """
    on_path = shutil.which(f"{product}-server")
    if on_path is not None:
        said = subprocess.run([on_path, "--version"], capture_output=True, text=True, check=False)
        if f"v={version}." in said.stdout:
            return Path(on_path)
    fetched = CACHE / f"{product}-{version}"
    if fetched.exists():
        return fetched
    raise ServerMissingError(
        f"no {product}-server {version}.x is on PATH or in .cache/servers;"
        " run scripts/setup.sh dev and read what it says"
    )


def is_version(found: Sequence[int], wanted: int | str) -> bool:
    """Say whether a server's version is 8, for any 8.x, or "8.2", for that minor."""
    numbers = [int(part) for part in str(wanted).split(".")]
    return list(found[: len(numbers)]) == numbers


class _Clients:
    """The synchronous clients that a server has handed out since its last wipe."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def add(self, client: Any) -> Any:
        self._open.append(client)
        return client

    def close(self) -> None:
        for client in self._open:
            with contextlib.suppress(redis.RedisError, OSError):
                client.close()
        self._open.clear()


class RedisServer:
    """One redis-server or valkey-server process without persistence.

    Arguments: the binary; the version that it must turn out to have, as for `find_server`, or None
    for any; a name for messages; and configuration options, dashes written as underscores
    (`maxmemory="3mb"`, `maxmemory_policy="noeviction"`). The process runs when the constructor
    returns.
    """

    is_cluster = False
    is_real = True

    def __init__(
        self,
        binary: str | Path,
        version: int | str | None = None,
        *,
        name: str = "redis",
        **config: Any,
    ) -> None:
        self.binary = Path(binary)
        self.name = name
        self.config: Mapping[str, Any] = config
        self.directory = Path(tempfile.mkdtemp(prefix="workstealing-", dir=RUN))
        self.socket = self.directory / "redis.sock"
        self.port = 0
        self.bus_port = 0
        # Redis 6.2 has its bus 10,000 ports further.
        self._chooses_bus = str(version) != "6.2"
        self.process: subprocess.Popen[bytes]
        self._clients = _Clients()
        atexit.register(self.stop)
        try:
            self._start_somewhere()
            self.version = self._ask_version()
        except BaseException:
            self.stop()
            raise
        if version is not None and not is_version(self.version, version):
            self.stop()
            raise ServerBrokenError(
                f"{binary} is version {self.version}, but {version}.x was wanted"
            )

    @property
    def url(self) -> str:
        """The address as redis-py and connect() take it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        path = self.directory / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, **options: Any) -> redis.Redis:
        """Return a redis.Redis; options are redis-py's. It is closed by the next wipe."""
        client: redis.Redis = self._clients.add(Client(**_options(Client, self.port, options)))
        return client

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """Return a redis.asyncio.Redis; use it by `async with`, which closes it."""
        client: redis.asyncio.Redis = AsyncClient(**_options(AsyncClient, self.port, options))
        return client

    def size(self) -> int:
        """Return how many keys there are, in all databases."""
        (said,) = ask(self.port, "INFO keyspace")
        return sum(int(keys) for keys in re.findall(rb"keys=(\d+)", said))

    def wipe(self) -> None:
        """Remove all data, close the clients handed out, and start the server again if it died."""
        self._clients.close()
        if self.process.poll() is not None:
            self.restart()
            return
        try:
            # A later test's `status` would tell of an earlier one's refusals.
            ask(self.port, "FLUSHALL", "ACL LOG RESET", seconds=10.0)
        except redis.RedisError:
            # A test has left it stopped, wedged or closed to writes.
            self.restart()

    def restart(self) -> None:
        """End the process and start it anew on the same port, empty, with its first options."""
        before = self.process.pid
        end(self.process)
        self._start()
        leftovers.replaced(before, self.process.pid)

    def kill(self) -> None:
        """Kill the process as a crash would (SIGKILL), and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """End the process and remove its folder; a second call does nothing."""
        self._clients.close()
        if hasattr(self, "process"):
            end(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_somewhere(self) -> None:
        for _ in range(10):
            self.port = free_port()
            self.bus_port = free_port() if self._chooses_bus else self.port + 10_000
            try:
                self._start()
                return
            except ServerBrokenError:
                # Another process took one of the ports in between: only then is another try right.
                if "in use" not in self.log and "bind" not in self.log:
                    raise
                (self.directory / "redis.log").unlink()
        raise ServerBrokenError(f"{self.name} found no free port in ten tries")

    def _start(self) -> None:
        options: dict[str, Any] = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "dir": self.directory,
            "logfile": "redis.log",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            **self.config,
        }
        if "cluster_enabled" in self.config and self._chooses_bus:
            options["cluster_port"] = self.bus_port
        command: list[str | Path] = [self.binary]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        self.process = spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.closing(self.probe()) as client:
            wait_until(lambda: self._answers(client), f"{self.name} to answer PING")

    def _answers(self, client: redis.Redis) -> bool:
        if self.process.poll() is not None:
            raise ServerBrokenError(f"{self.name} ended while starting; its log: {self.log[-800:]}")
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False

    def _ask_version(self) -> tuple[int, ...]:
        with contextlib.closing(self.probe()) as client:
            try:
                info = client.info("server")
            except redis.ResponseError:
                # A test has taken the command away.
                told = subprocess.run([self.binary, "--version"], capture_output=True, check=True)
                info = {"redis_version": re.findall(r"v=([\d.]+)", told.stdout.decode())[0]}
        said = info.get("valkey_version", info["redis_version"])
        return tuple(int(part) for part in said.split("."))

    def probe(self, seconds: float = 10.0) -> redis.Redis:
        """Return a client that makes one attempt of at most `seconds`; the caller closes it."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=seconds,
            socket_connect_timeout=seconds,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )


class RedisCluster3:
    """A cluster of three masters that share all 16,384 slots; no replicas.

    Arguments as for RedisServer; the options go to each node; binary: or three, one of each node.
    `nodes` are the RedisServers.
    """

    is_cluster = True
    is_real = True
    FIRST_SLOTS = (0, 5_461, 10_923, 16_384)

    def __init__(
        self,
        binary: str | Path | Sequence[Path],
        version: int | str | None = None,
        *,
        name: str = "cluster",
        **config: Any,
    ) -> None:
        self.name = name
        self.nodes: list[RedisServer] = []
        self._clients = _Clients()
        # A node that a busy machine holds up for some seconds has not failed.
        settings = {"cluster_enabled": "yes", "cluster_node_timeout": 20_000, **config}
        try:
            binaries = [binary] * 3 if isinstance(binary, str | Path) else binary
            for number, each in enumerate(binaries):
                node = RedisServer(each, version, name=f"{name}, node {number}", **settings)
                self.nodes.append(node)
            self._join()
        except BaseException:
            self.stop()
            raise

    @property
    def port(self) -> int:
        """The first node's port."""
        return self.nodes[0].port

    @property
    def url(self) -> str:
        """The address as connect() takes it."""
        return f"redis+cluster://127.0.0.1:{self.port}"

    @property
    def version(self) -> tuple[int, ...]:
        """The nodes' version."""
        return self.nodes[0].version

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a redis.RedisCluster; options are redis-py's. It is closed by the next wipe."""
        client: redis.RedisCluster = self._clients.add(
            ClusterClient(**_options(ClusterClient, self.port, options))
        )
        return client

    def async_client(self, **options: Any) -> redis.asyncio.RedisCluster:
        """Return a redis.asyncio.RedisCluster; use it by `async with`, which closes it."""
        client: redis.asyncio.RedisCluster = AsyncClusterClient(
            **_options(AsyncClusterClient, self.port, options)
        )
        return client

    def node_of(self, slot: int) -> RedisServer:
        """Return the node that served the slot when the cluster was made."""
        return next(
            node
            for node, end_slot in zip(self.nodes, self.FIRST_SLOTS[1:], strict=True)
            if slot < end_slot
        )

    def size(self) -> int:
        """Return how many keys there are on all nodes."""
        return sum(node.size() for node in self.nodes)

    def wipe(self) -> None:
        """Remove all data from every node, and bring back nodes that a test has killed."""
        for each in (self, *self.nodes):
            each._clients.close()
        # One visit to each node wipes a cluster that is whole.
        with contextlib.suppress(redis.RedisError):
            words = ("FLUSHALL", "CLUSTER INFO", "CLUSTER NODES")
            seen = [ask(node.port, *words, seconds=10.0) for node in self.nodes]
            if all(_says_whole(info, nodes) for _, info, nodes in seen):
                return
        for node in self.nodes:
            node.wipe()
        self._wait_until_whole()

    def stop(self) -> None:
        """End the three processes and remove their folders; a second call does nothing."""
        self._clients.close()
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _join(self) -> None:
        for number, node in enumerate(self.nodes):
            with contextlib.closing(node.probe(5.0)) as client:
                first, after = self.FIRST_SLOTS[number : number + 2]
                # Redis 6.2 has no ADDSLOTSRANGE.
                client.execute_command("CLUSTER ADDSLOTS", *range(first, after))
                # Different epochs from the start spare the nodes their first quarrel.
                # Only a node that knows no other takes one, so this comes before any meeting.
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes:
            with contextlib.closing(node.probe(5.0)) as client:
                for other in self.nodes:
                    if other is not node:
                        client.execute_command(
                            "CLUSTER MEET", "127.0.0.1", other.port, other.bus_port
                        )
        self._wait_until_whole()

    def _wait_until_whole(self) -> None:
        for node in self.nodes:
            wait_until(partial(_is_whole, node.port), f"{node.name} to join")


class FakeRedisServer:
    """fakeredis in this process, in its Redis 6.2 dialect; it proves no race."""

    is_cluster = False
    is_real = False
    version = (6, 2)

    def __init__(self, name: str = "fakeredis") -> None:
        self.name = name
        self.server = fakeredis.FakeServer(version=self.version)

    def client(self, **options: Any) -> redis.Redis:
        """Return a FakeRedis of this server; options are redis-py's."""
        return fakeredis.FakeRedis(server=self.server, version=self.version, **options)

    def async_client(self, **options: Any) -> redis.asyncio.Redis:
        """Return a FakeAsyncRedis of this server; options are redis-py's."""
        return fakeredis.FakeAsyncRedis(server=self.server, version=self.version, **options)

    def size(self) -> int:
        """Return how many keys there are, in all databases."""
        return sum(len(database) for database in self.server.dbs.values())

    def wipe(self) -> None:
        """Forget all data."""
        self.server.connected = True
        with contextlib.closing(self.client()) as client:
            client.flushall()

    def stop(self) -> None:
        """Do nothing: there is no process."""


def wait_until(is_so: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Ask every few milliseconds until it is so. Raises: ServerBrokenError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise ServerBrokenError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(POLL_SECONDS)


def _is_whole(port: int) -> bool:
    """Say whether this node sees a cluster that is up and in which nobody is suspected."""
    return _says_whole(*ask(port, "CLUSTER INFO", "CLUSTER NODES"))


def _says_whole(info: bytes, nodes: bytes) -> bool:
    said = set(info.split())
    # A line: id, address, flags, master, two times, epoch, state of the link, slots.
    lines = [line.split() for line in nodes.splitlines()]
    return (
        {b"cluster_state:ok", b"cluster_slots_ok:16384"} <= said
        and len(lines) == 3
        and not any(b"fail" in line[2] or line[7] != b"connected" for line in lines)
    )


@contextlib.contextmanager
def sentinel_of(server: RedisServer, folder: Path, *settings: str) -> Iterator[int]:
    """Start a sentinel that watches a server as "main"; yield its port, and end it.

    Arguments:
        folder: for its files.
        settings: further lines of its configuration.
    """
    port = free_port()
    conf = folder / "sentinel.conf"
    conf.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor main 127.0.0.1 {server.port} 1\n"
        + "".join(f"{each}\n" for each in settings)
    )
    process = spawn([find_server("redis", 7), conf, "--sentinel"], stdout=subprocess.DEVNULL)
    probe = redis.Redis(port=port, retry=Retry(NoBackoff(), 0))

    def answers() -> bool:
        try:
            return bool(probe.ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False

    try:
        wait_until(answers, "the sentinel to answer PING")
        yield port
    finally:
        probe.close()
        end(process)
