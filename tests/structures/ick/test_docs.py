"""docs/ick.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from support.servers import RedisServer
from workstealing.structures import Ick
from workstealing.structures.structure import Structure

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "ick.md").read_text("utf-8")


def test_the_code_runs(redis7: RedisServer) -> None:
    worked_on: list[bytes] = []
    scope: dict[str, Any] = {"of_the_test": redis7.client(), "work_on": worked_on.append}
    first, loop = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    seen = 0
    for line in first.replace("redis.Redis()", "of_the_test").splitlines():
        call, _, reply = line.partition("  # ")
        if call.startswith(("dirty.", "batch.")):
            assert eval(call, scope) == eval(reply), call
            seen += 1
        else:
            exec(line, scope)
    assert seen == 5
    exec(loop, scope)
    assert worked_on == [b"document:3"]
    assert scope["dirty"].stats()["total_size"] == 0


def test_every_method_is_named() -> None:
    (table,) = re.findall(r"## Methods\n\n(.*?)\n\n", PAGE, re.DOTALL)
    named = set(re.findall(r"`(\w+)\(", table))
    public = {name for name in dir(Ick) if not name.startswith("_")}
    assert public - named - set(dir(Structure)) == {"pipeline", "kind"}
