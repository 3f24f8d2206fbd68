"""A log on asyncio clients: the same story, awaited."""

from __future__ import annotations

import asyncio

import pytest

from support.servers import AnyServer
from workstealing.structures import AsyncLog, LogRange

pytestmark = pytest.mark.contract


async def test_story_on_asyncio(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        log = AsyncLog(client, "visits", 10)
        assert isinstance(log, AsyncLog)
        entries = [b"entry %d" % number for number in range(35)]
        assert await log.append(*entries[:30]) == 0
        assert await log.append(*entries[30:], keep=100) == 30
        assert await log.read(8, 5) == entries[8:13]
        assert [entry async for entry in log] == entries
        assert [entry async for entry in log.iterate(20, 30, reverse=True)] == entries[29:19:-1]
        assert await log.evict(14) == 15
        assert await log.read_range(14, 2) == (
            LogRange(15, 34, 14, 2),
            [None, entries[15]],
        )
        assert (await log.first(), await log.last(), await log.length()) == (15, 34, 20)
        assert (await log.stats()).blocks == 3
        assert await log.delete()
        assert await log.read(0) == []
        await log.aclose()


async def test_a_coroutine_waits_for_its_very_offset(any_server: AnyServer) -> None:
    async with any_server.async_client() as client:
        log = AsyncLog(client, "visits", 10)
        await log.append(b"0")
        reads = [asyncio.create_task(log.read(offset, 5, block=20)) for offset in (1, 2, 2, 3)]
        await asyncio.sleep(0.05)
        await log.append(b"1")
        await log.append(b"2")
        async with asyncio.timeout(15):
            found = await asyncio.gather(*reads[:3])
        assert found[0][0] == b"1"
        assert found[1][0] == found[2][0] == b"2"
        assert not reads[3].done()
        reads[3].cancel()
        with pytest.raises(asyncio.CancelledError):
            await reads[3]
        assert await log.read(3, 1, block=0.04) == []
        await log.aclose()
