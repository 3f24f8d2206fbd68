"""The Python blocks of docs/sharded_ick.md run in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.servers import RedisServer

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sharded_ick.md"


def test_the_blocks(redis7: RedisServer) -> None:
    text = PAGE.read_text("utf-8").replace("redis://localhost:6379/0", redis7.url)
    first, second, third = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    indexed: list[bytes] = []
    names: dict[str, Any] = {"index": indexed.extend}
    exec(compile(first, "docs", "exec"), names)
    assert indexed == [b"17"]
    names["dirty"].add("18")
    exec(compile(second, "docs", "exec"), names)
    assert indexed == [b"17", b"18"]
    assert names["dirty"].stats()["total_size"] == 0
    exec(compile(third, "docs", "exec"), names)
    assert names["dirty"].open() == 16
