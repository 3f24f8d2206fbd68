"""What a log takes of memory and of the wire: bytes and commands that are counted, never timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.log_entries import entries
from support.patience import patient  # noqa: F401 - an autouse fixture
from support.servers import RedisServer
from workstealing.jobs import LogCompactor
from workstealing.recruiting import Slice
from workstealing.structures import Log

BLOCK = 1_000
STORED = 20_000
NAME = "measured"


@pytest.fixture(params=["redis7", "valkey8"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    found: RedisServer = request.getfixturevalue(request.param)
    yield found
    found.wipe()


def filled(client: Any, content: list[bytes], codec: str | None = None) -> Any:
    """Return a log with these entries; codec: of the compactor that has been at work, if any."""
    log: Any = Log(client, NAME, BLOCK)
    for first in range(0, len(content), BLOCK):
        log.append(*content[first : first + BLOCK])
    if codec is not None:
        job = LogCompactor(log, limit=20, cold=0, codec=codec)
        while job.perform(Slice(20, 10.0)):
            pass
    return log


def memory(client: Any) -> int:
    return sum(client.memory_usage(key, samples=0) for key in client.scan_iter(count=1_000))


def sent(client: Any, work: Callable[[], object]) -> int:
    """Return how many bytes the server sends for this."""
    before = client.info("stats")["total_net_output_bytes"]
    middle = client.info("stats")["total_net_output_bytes"]
    work()
    after = client.info("stats")["total_net_output_bytes"]
    # The second INFO is counted within what follows it.
    return int(after - middle - (middle - before))


def commands(client: Any, work: Callable[[], object]) -> dict[str, int]:
    """Return how often the server has called which command for this, in scripts too."""
    client.config_resetstat()
    work()
    return {
        name: stats["calls"]
        for name, stats in client.info("commandstats").items()
        if not name.startswith(("cmdstat_config", "cmdstat_info"))
    }


@pytest.mark.slow
def test_compressed_entries_take_a_quarter_of_what_a_stream_takes(server: RedisServer) -> None:
    client = server.client()
    content = entries(STORED)
    pipeline = client.pipeline(transaction=False)
    for entry in content:
        pipeline.xadd("stream", {"e": entry})
    pipeline.execute()
    streamed = memory(client)
    took: dict[str | None, int] = {}
    for codec in (None, "none", "zlib", "zstd"):
        client.flushall()
        log = filled(client, content, codec)
        assert log.read(0, STORED) == content
        took[codec] = memory(client)
    assert max(took["zlib"], took["zstd"]) <= streamed / 4, (took, streamed)
    # A list takes less than a stream, and a raw block, with its table, about as much.
    assert took[None] <= streamed, (took, streamed)
    assert took["none"] <= streamed * 1.05, (took, streamed)


def test_what_info_says_is_what_the_server_counts(server: RedisServer) -> None:
    client = server.client()
    log = filled(client, entries(STORED), "zlib")
    facts = log.stats()
    assert (facts.entries, facts.blocks, facts.compressed) == (STORED, 20, 20)
    blocks = sum(client.memory_usage(key) for key in client.scan_iter(log.keys.base + b"b*"))
    assert 0.9 * blocks <= facts.bytes <= 1.1 * memory(client)
    assert facts.bytes_per_entry == pytest.approx(facts.bytes / STORED, rel=0.01)


def test_only_what_a_reader_asks_for_is_sent(server: RedisServer) -> None:
    client = server.client()
    content = entries(STORED)
    ten = sum(map(len, content[7_500:7_510]))
    log = filled(client, content)
    assert log.read(7_500, 10) == content[7_500:7_510]
    assert sent(client, lambda: log.read(7_500, 10)) <= ten + 400
    client.flushall()
    log = filled(client, content, "none")
    log.read(0, 1)
    # As sealed blocks these are: no whole block is moved for ten entries.
    assert sent(client, lambda: log.read(7_500, 10)) <= ten + 400
    client.flushall()
    log = filled(client, content, "zlib")
    log.read(0, 1)
    assert ten * 10 < sent(client, lambda: log.read(7_500, 10)) < 40_000
    # The second time the block is at the client: only the facts come.
    assert sent(client, lambda: log.read(7_510, 10)) <= 300


def test_a_seek_takes_as_many_commands_in_a_long_log_as_in_a_short_one(
    server: RedisServer,
) -> None:
    client = server.client()
    content = entries(STORED)
    for codec in (None, "none", "zlib"):
        found = []
        for length in (2_000, STORED):
            client.flushall()
            filled(client, content[:length], codec)
            log: Any = Log(client, NAME, BLOCK)
            log.read(0, 1)
            found.append(commands(client, lambda log=log, at=length // 2: log.read(at + 17, 10)))
        assert found[0] == found[1]
        # The script, and what it calls.
        assert sum(found[0].values()) <= 6, found[0]


def test_what_is_kept_here_is_read_without_a_script(server: RedisServer) -> None:
    client = server.client()
    content = entries(STORED)
    log = filled(client, content, "zlib")
    for offset, count in ((7_500, 10), (7_995, 10), (2_500, 5_000)):
        assert log.read(offset, count) == content[offset : offset + count]
        called = commands(client, lambda offset=offset, count=count: log.read(offset, count))
        assert called == {"cmdstat_hmget": 1}
        assert log.read(offset, count) == content[offset : offset + count]
    # One block of these is not kept.
    called = commands(client, lambda: log.read(1_990, 20))
    assert called["cmdstat_evalsha"] == 1


def test_a_batch_is_one_round_trip(server: RedisServer) -> None:
    client = server.client()
    log: Any = Log(client, NAME, BLOCK)
    log.append(b"the first loads the script")
    batch = entries(1_000)
    called = commands(client, lambda: log.append(*batch))
    assert called["cmdstat_evalsha"] == 1
    # It goes over the end of a block, and still costs no command an entry.
    assert sum(called.values()) <= 20, called


def test_what_is_evicted_is_given_back(server: RedisServer) -> None:
    client = server.client()
    content = entries(STORED)
    for codec in (None, "none", "zlib"):
        client.flushall()
        log = filled(client, content, codec)
        full = memory(client)
        log.evict(keep=BLOCK)
        assert memory(client) < full / 10
        log.evict(keep=0)
        assert memory(client) < 8_000
        assert log.append(b"next") == STORED
        log.delete()
        assert list(client.scan_iter()) == []
