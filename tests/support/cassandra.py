"""A real Cassandra node, from Maven's jars: started on free loopback ports, ended by its id.

As a program (`make cassandra`): one node with the keyspace `shop`, until Ctrl-C.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from support.leftovers import replaced
from support.processes import spawn
from workstealing.structures.time_shard_queue.cassandra_store import (
    AsyncCassandraStore,
    CassandraStore,
)

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / ".cache" / "cassandra" / "lib"
START_SECONDS = 240.0
"""A node is up after 20 s on a quiet machine."""
KEYSPACE = "workstealing"

_OPENED = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.lang.ref",
    "java.base/java.math",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.nio.charset",
    "java.base/java.nio.file.spi",
    "java.base/java.security",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.util.concurrent.locks",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.module",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.util.jar",
    "java.base/jdk.internal.perf",
    "java.management/com.sun.jmx.remote.security",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.management/com.sun.management.internal",
]
_EXPORTED = [
    each
    for each in _OPENED
    if "jdk.internal." in each or each.endswith("/java.lang.ref") or "/sun.rmi." in each
]
_ACCESS = (
    *(f"--add-opens={each}=ALL-UNNAMED" for each in _OPENED),
    *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTED),
)
_YAML = """
cluster_name: workstealing
num_tokens: 1
initial_token: '{token}'
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
commitlog_sync: periodic
commitlog_sync_period: 1000ms
data_file_directories: [{home}/data]
commitlog_directory: {home}/commitlog
saved_caches_directory: {home}/caches
hints_directory: {home}/hints
cdc_raw_directory: {home}/cdc
listen_address: {address}
rpc_address: {address}
native_transport_port: {cql}
storage_port: {storage}
start_native_transport: true
endpoint_snitch: SimpleSnitch
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: '127.0.0.1:{seed}'}}]
auto_snapshot: false
auto_bootstrap: false
memtable_allocation_type: heap_buffers
hinted_handoff_enabled: {hints}
concurrent_compactors: 1
# Three nodes share two cores with other work: a slow answer is not a fault.
read_request_timeout: 20s
range_request_timeout: 20s
write_request_timeout: 20s
cas_contention_timeout: 20s
request_timeout: 20s
# A plain queue is to become slow in the benchmark, and not to fail.
tombstone_failure_threshold: 10000000
"""
_LOGBACK = """<configuration>
<appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
<encoder><pattern>%-5level %date{ISO8601} %F:%L - %msg%n</pattern></encoder></appender>
<root level="WARN"><appender-ref ref="OUT"/></root></configuration>
"""


class CassandraMissingError(Exception):
    """There is no Cassandra here; the message says why."""


def find_jars() -> Path:
    """Return the folder of the jars. Raises: CassandraMissingError."""
    if shutil.which("java") is None:
        raise CassandraMissingError("there is no java: install Java 17 to run Cassandra")
    if not any(JARS.glob("apache-cassandra-*.jar")) and not any(JARS.glob("cassandra-all-*.jar")):
        raise CassandraMissingError(
            "Cassandra's jars are not in .cache/cassandra: run scripts/fetch_cassandra.sh"
        )
    return JARS


def free_port(address: str) -> int:
    """Return a port of an address that nobody listens at now."""
    with socket.socket() as each:
        each.bind((address, 0))
        port: int = each.getsockname()[1]
        return port


class CassandraNode:
    """A node; a context manager that starts and ends it.

    Arguments:
        address: of the loopback.
        seed: the first node's storage port, None: it is the first.
        storage: its own storage port, for a node that others know.
        hints: whether it keeps writes for nodes that are down.
        token: its place in the ring.
    """

    def __init__(
        self,
        address: str = "127.0.0.1",
        seed: int | None = None,
        *,
        storage: int | None = None,
        hints: bool = True,
        token: int = 0,
    ) -> None:
        self.address, self.token = address, token
        self.cql = free_port(address)
        self.storage = free_port(address) if storage is None else storage
        self.seed = self.storage if seed is None else seed
        self.hints = hints
        self.jmx = free_port("127.0.0.1")
        self.home = Path(tempfile.mkdtemp(prefix="workstealing-cassandra-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._former: int | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until a CQL connection answers."""
        jars = find_jars()
        yaml, logback = self.home / "cassandra.yaml", self.home / "logback.xml"
        yaml.write_text(
            _YAML.format(
                home=self.home,
                address=self.address,
                cql=self.cql,
                storage=self.storage,
                seed=self.seed,
                hints=str(self.hints).lower(),
                token=self.token,
            )
        )
        logback.write_text(_LOGBACK)
        command = [
            *(
                "java",
                "-Xms512m",
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Xss512k",
            ),
            *_ACCESS,
            "-Djdk.attach.allowAttachSelf=true",
            f"-Dcassandra.config={yaml.as_uri()}",
            f"-Dlogback.configurationFile={logback}",
            f"-Dcassandra.storagedir={self.home}",
            "-Dcassandra.skip_wait_for_gossip_to_settle=0",
            "-Dcassandra.ring_delay_ms=100",
            f"-Dcassandra.jmx.local.port={self.jmx}",
            *("-cp", f"{jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]
        with (self.home / "log").open("ab") as log:
            self.process = spawn(command, stdout=log, stderr=log, cwd=self.home)
        if self._former is not None:
            replaced(self._former, self.process.pid)
        self._former = self.process.pid
        end = time.monotonic() + START_SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                said = (self.home / "log").read_text(errors="replace")[-3000:]
                self.stop()
                raise AssertionError(f"Cassandra did not start:\n{said}")
            with contextlib.suppress(Exception):
                socket.create_connection((self.address, self.cql), 1).close()
                with connected(self):
                    return
            time.sleep(0.5)

    def stop(self, *, kill: bool = False) -> None:
        """End it by its process id."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill() if kill else process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tool(self, *command: str) -> str:
        """Run nodetool; return what it says."""
        done = subprocess.run(
            [
                *("java", "-XX:TieredStopAtLevel=1", *_ACCESS, "-cp", f"{find_jars()}/*"),
                *(f"-Dcassandra.config={(self.home / 'cassandra.yaml').as_uri()}",),
                *("org.apache.cassandra.tools.NodeTool", "-p", str(self.jmx), *command),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def spent(self) -> float:
        """Return the CPU seconds that it has taken."""
        assert self.process is not None
        said = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, said[11:13])) / os.sysconf("SC_CLK_TCK")


class CassandraServer:
    """A node with one table, lent to a test as the servers of Redis are.

    Arguments:
        table: its name.
    """

    name = "cassandra"

    def __init__(self, node: CassandraNode, session: Any, table: str = "queues") -> None:
        self.node, self.session, self.table = node, session, table
        session.execute(
            f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication ="
            " {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        self.store().create_table()

    def store(self, ahead_ms: int = 0) -> CassandraStore:
        """Return a store on the table."""
        return CassandraStore(self.session, KEYSPACE, self.table, clock_shift_ms=ahead_ms)

    def async_store(self) -> AsyncCassandraStore:
        """Return a store for asyncio."""
        return AsyncCassandraStore(self.session, KEYSPACE, self.table)

    def client(self, **_: Any) -> Any:
        """Refuse: what asks for a client is about Redis."""
        raise AssertionError("a test for every store asks a Cassandra for a client of Redis")

    async_client = client

    def rows(self) -> dict[Any, Any]:
        """Return all rows, and the static columns, by their keys."""
        found = self.session.execute(f"SELECT * FROM {KEYSPACE}.{self.table}")
        return {(row.name, row.shard, row.kind, row.due, row.id): tuple(row) for row in found}

    def size(self) -> int:
        """Return the number of rows."""
        return len(self.rows())

    def wipe(self) -> None:
        """Remove all rows."""
        if self.rows():
            self.session.execute(f"TRUNCATE {KEYSPACE}.{self.table}", timeout=60)


@contextlib.contextmanager
def connected(*nodes: CassandraNode, **options: Any) -> Iterator[Any]:
    """Yield a session of the driver on some nodes."""
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.connection import DefaultEndPoint
    from cassandra.policies import ConstantReconnectionPolicy, RoundRobinPolicy

    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=60)
    cluster = Cluster(
        [DefaultEndPoint(each.address, each.cql) for each in nodes],
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        connect_timeout=10,
        reconnection_policy=ConstantReconnectionPolicy(0.5, max_attempts=None),
        control_connection_timeout=10,
        **{"protocol_version": 5, **options},
    )
    try:
        session = cluster.connect()
        # The driver's own threads begin now, and not in the middle of a test.
        for _ in range(2):
            cluster.executor.submit(time.sleep, 0.05)
        yield session
    finally:
        cluster.shutdown()


def agreed(session: Any, nodes: int) -> None:
    """Wait until so many nodes know each other, and the same tables."""
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable

    ask = "SELECT schema_version FROM system.local"
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        up = [host for host in session.cluster.metadata.all_hosts() if host.is_up]
        # Each node is asked itself: another one hears of its version late. A node that has just
        # come back may have no connection yet.
        with contextlib.suppress(NoHostAvailable, DriverException):
            versions = {session.execute(ask, host=host).one() for host in up}
            if len(up) == nodes and len(versions) == 1:
                return
        time.sleep(0.2)
    raise AssertionError("the nodes of Cassandra do not agree on the tables")


def main() -> None:
    """Run a node until Ctrl-C, and say how to reach it."""
    say = functools.partial(print, flush=True)
    say("a Cassandra starts, which takes up to a minute")
    with CassandraNode() as node:
        with connected(node) as session:
            session.execute(
                "CREATE KEYSPACE shop WITH replication ="
                " {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
        say(f"Cluster(['127.0.0.1'], port={node.cql}), or for `workstealing queue produce NAME`:")
        say(f"--cassandra cassandra://127.0.0.1:{node.cql}/shop")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
