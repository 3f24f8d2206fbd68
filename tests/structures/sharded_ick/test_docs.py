"""The Python blocks of docs/sharded_ick.md run in order."""

from __future__ import annotations

from support.pages import running
from support.servers import RedisServer


def test_the_blocks(redis7: RedisServer) -> None:
    indexed: list[bytes] = []
    here = {"redis://localhost:6379/0": redis7.url}
    with running("docs/sharded_ick.md", replace=here) as page:
        names = page.run(index=indexed.extend)
        assert indexed == [b"17"]
        names["dirty"].add("18")
        page.run()
        assert indexed == [b"17", b"18"]
        assert names["dirty"].stats()["total_size"] == 0
        page.run()
        assert names["dirty"].open() == 16
