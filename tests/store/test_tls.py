"""TLS with certificates of clients, and UNIX sockets: every part works by the URL alone.

An authority signs the server's certificate and the clients', as it is done in earnest.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.certificates import make_signed
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.processes import free_port
from support.servers import RedisServer, find_server, wait_until
from workstealing import Fleet, Recruiter, connect
from workstealing.cli import main
from workstealing.errors import Aborted, ConfigurationError
from workstealing.jobs import HashFieldExpiry
from workstealing.metrics.ledger import Ledger, total
from workstealing.metrics.ledger import read as read_ledger
from workstealing.recruiting.slice import Outcome
from workstealing.store import attempt, connect_async
from workstealing.structures import (
    AsyncLog,
    AsyncVolatileHashes,
    FairQueue,
    Log,
    ShuffleQueue,
    VolatileHashes,
)
from workstealing.testing import always

pytestmark = pytest.mark.real

AHEAD_MS = 3_600_000


@dataclass(frozen=True)
class Place:
    """A server that demands a certificate of its clients, and the folder with all of them."""

    server: RedisServer
    port: int
    folder: Path

    def files(self, owner: str = "client") -> str:
        """Return the options of a URL for the owner's certificate."""
        return (
            f"ssl_ca_certs={self.folder}/authority.crt&ssl_certfile={self.folder}/{owner}.crt"
            f"&ssl_keyfile={self.folder}/{owner}.key"
        )

    def url(self, how: str) -> str:
        """Return the URL of a way to the server."""
        if how == "unix":
            return f"unix://worker:secret@{self.server.socket}?db=2"
        return f"rediss://worker:secret@127.0.0.1:{self.port}/2?{self.files()}"


def of_tls(folder: Path, port: int) -> dict[str, Any]:
    """Return a server's options for TLS with certificates of clients."""
    return {
        "tls_port": port,
        "tls_cert_file": folder / "server.crt",
        "tls_key_file": folder / "server.key",
        "tls_ca_cert_file": folder / "authority.crt",
        "tls_auth_clients": "yes",
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = make_signed(tmp_path_factory.mktemp("tls"), "authority", "server", "client")
    make_signed(folder, "stranger", "intruder")
    port = free_port()
    with RedisServer(find_server("redis", 7), 7, **of_tls(folder, port)) as server:
        server.client().execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        yield Place(server, port, folder)


@pytest.fixture(params=["tls", "unix"])
def url(request: pytest.FixtureRequest, place: Place) -> str:
    """A URL of each kind; its user has a password."""
    place.server.wipe()
    return place.url(request.param)


def blocked(place: Place) -> bool:
    return int(place.server.client().info("clients")["blocked_clients"]) > 0


def expiring(client: Any, kind: type[Any] = VolatileHashes) -> Any:
    """Return hashes that live an hour later."""
    return kind(client, "items", backend="emulated", clock_shift_ms=AHEAD_MS)


def test_hashes_and_their_job(url: str) -> None:
    with connect(url) as client:
        VolatileHashes(client, "items", backend="emulated").hsetex("h", "f", "v", ex=60)
        recruiter: Recruiter = always(seconds=10.0)
        recruiter.install(HashFieldExpiry(expiring(client)), rate=1.0)
        assert recruiter.enlist() is Outcome.WORKED
        assert not client.exists("h")
        assert recruiter.enlist() is Outcome.IDLE


def test_an_attempt_aborts_and_goes_through(url: str) -> None:
    with connect(url) as client:
        with attempt(client, "k") as current:
            assert current.read(("GET", "k")) == [None]
            client.set("k", 1)
            with pytest.raises(Aborted):
                current.commit(("SET", "k", 2))
        with attempt(client, "k") as current:
            assert current.read(("GET", "k")) == [b"1"]
            current.commit(("SET", "k", 3))
        assert client.get("k") == b"3"


@pytest.mark.parametrize("kind", ["log", "queue", "fair queue"])
def test_a_wait_has_a_connection_of_its_own(url: str, kind: str, place: Place) -> None:
    with connect(url) as client:
        log, queue = Log(client, "log"), ShuffleQueue(client, "queue")
        fair = FairQueue(client, "fair")
        found: list[Any] = []

        def wait() -> None:
            if kind == "log":
                found.extend(log.read(0, block=60.0))
            elif kind == "queue":
                found.append(queue.read("group", "me", block=60.0))
            else:
                found.append(fair.read("me", block=60.0))

        reader = threading.Thread(target=wait)
        reader.start()
        wait_until(lambda: blocked(place), "the reader to block")
        if kind == "log":
            log.append(b"entry")
        else:
            (queue if kind == "queue" else fair).write("tenant", {"a": "b"})
        reader.join(60.0)
        assert len(found) == 1
        assert found[0] is not None


async def test_asyncio(url: str, place: Place) -> None:
    async with connect_async(url) as client:
        hashes = AsyncVolatileHashes(client, "items", backend="emulated")
        await hashes.hsetex("h", mapping={"f": "v"}, ex=60)
        recruiter: Recruiter = always(seconds=10.0)
        recruiter.install(HashFieldExpiry(expiring(client, AsyncVolatileHashes)), rate=1.0)
        assert await asyncio.to_thread(recruiter.enlist) is Outcome.WORKED
        log = AsyncLog(client, "log")
        waiting = asyncio.create_task(log.read(0, block=60.0))
        while not await asyncio.to_thread(blocked, place):
            assert not waiting.done()
        await log.append(b"entry")
        assert len(await waiting) == 1


def test_the_ledger(url: str) -> None:
    with connect(url) as client:
        recruiter: Recruiter = always(seconds=10.0)
        ledger = Ledger(client)
        recruiter.add_hook(ledger)
        recruiter.install(HashFieldExpiry(expiring(client)), rate=1.0)
        recruiter.enlist()
        assert ledger.flush(30.0)
        ledger.close(30.0)
        assert [each.recruited for each in total(read_ledger(client)).values()] == [1]


def test_nodes_of_a_fleet(place: Place) -> None:
    place.server.wipe()
    fleet = Fleet([place.url("tls"), place.url("unix")])
    hashes = VolatileHashes(fleet, "items", backend="emulated")
    for number in range(20):
        hashes.hsetex(f"h{number}", "f", number, ex=60)
    assert {fleet.home(f"h{number}") for number in range(20)} == set(fleet.nodes)
    assert [hashes.hget(f"h{number}", "f") for number in range(20)] == [
        str(number).encode() for number in range(20)
    ]
    recruiter: Recruiter = always(seconds=10.0)
    recruiter.install(HashFieldExpiry(expiring(fleet), limit=100), rate=1.0)
    wait_until(
        lambda: (
            recruiter.enlist() is Outcome.WORKED
            and not place.server.client(db=2).exists(*(f"h{number}" for number in range(20)))
        ),
        "all to be collected",
    )
    for each in fleet.nodes.values():
        each.close()


def test_the_doctor(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("--url", url), ()):
        monkeypatch.setenv("WORKSTEALING_REDIS_URL", url if not arguments else "")
        assert main(["doctor", *arguments, "--json"]) == 0
        shown = capsys.readouterr().out
        assert "secret" not in shown
        levels = {each["what"]: each["level"] for each in json.loads(shown)["checks"]}
        for what in ("server", "role", "eviction", "memory", "native", "clock"):
            assert levels[what] == "ok"


@pytest.mark.parametrize("owner", ["intruder", None])
def test_a_certificate_that_the_server_does_not_know(
    place: Place, owner: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    files = place.files(owner) if owner else place.files().partition("&")[0]
    assert main(["doctor", "--url", f"rediss://u:secret@127.0.0.1:{place.port}?{files}"]) == 2
    said = capsys.readouterr().err
    assert "the Redis at --url cannot be used" in said
    assert "secret" not in said
    assert said.count("\n") == 1


def test_sparks_options_take_the_url(url: str) -> None:
    pytest.importorskip("pyspark")
    from workstealing.spark.sources.options import OptionReader

    client = OptionReader("volatile_hash", {"url": url}).client().connected()
    assert client.ping()
    client.close()


@pytest.mark.parametrize("scheme", ["redis+sentinel", "rediss+sentinel", "rediss+cluster"])
def test_sparks_other_options_refuse_every_url(scheme: str) -> None:
    pytest.importorskip("pyspark")
    from workstealing.spark.sources.options import OptionReader

    with pytest.raises(ConfigurationError, match="holds a URL") as caught:
        OptionReader("log", {"name": f"{scheme}://u:secret@host/main"}).text("name")
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = make_signed(tmp_path_factory.mktemp("tls"), "authority", "server", "client")
    port = free_port()
    options = {**of_tls(folder, port), "tls_cluster": "yes", "tls_replication": "yes"}
    with RedisServer(find_server("redis", 7), 7, cluster_enabled="yes", **options) as server:
        admin = server.client()
        admin.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        wait_until(
            lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok",
            "the cluster to serve",
        )
        place = Place(server, port, folder)
        yield f"rediss+cluster://127.0.0.1:{port}?{place.files()}"


@pytest.mark.cluster
class TestClusters:
    def test_hashes_and_their_job(self, cluster_url: str) -> None:
        with connect(cluster_url) as client:
            VolatileHashes(client, "items", backend="emulated").hsetex("h", "f", "v", ex=60)
            recruiter: Recruiter = always(seconds=10.0)
            recruiter.install(HashFieldExpiry(expiring(client)), rate=1.0)
            assert recruiter.enlist() is Outcome.WORKED
            assert not client.exists("h")

    async def test_asyncio(self, cluster_url: str) -> None:
        async with connect_async(cluster_url) as client:
            hashes = AsyncVolatileHashes(client, "items", backend="emulated")
            await hashes.hsetex("a", mapping={"f": "v"}, ex=60)
            recruiter: Recruiter = always(seconds=10.0)
            recruiter.install(HashFieldExpiry(expiring(client, AsyncVolatileHashes)), rate=1.0)
            assert await asyncio.to_thread(recruiter.enlist) is Outcome.WORKED

    def test_the_doctor(self, cluster_url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["doctor", "--url", cluster_url, "--json"]) == 0
        found = {each["what"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert "16384 of 16384 slots" in found["cluster"]["said"]
