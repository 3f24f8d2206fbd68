"""docs/ick.md says what is so."""

from __future__ import annotations

import re
from types import SimpleNamespace

from support.pages import running, text_of
from support.resting import let_pass
from support.servers import RedisServer
from workstealing.structures import Ick
from workstealing.structures.structure import Structure

PAGE = text_of("docs/ick.md")


def test_the_code_runs(redis7: RedisServer) -> None:
    worked_on: list[bytes] = []
    here = {"redis.Redis()": "of_the_test"}
    with running("docs/ick.md", replace=here) as page:
        # Each call's reply is the one behind it.
        scope = page.run(replies=5, of_the_test=redis7.client())
        page.run(work_on=worked_on.append)
        pages = Ick(redis7.client(), "dirty:pages").names
        passing = SimpleNamespace(sleep=lambda seconds: let_pass(redis7.client(), pages, seconds))
        page.run(replies=5, time=passing)
    assert worked_on == [b"document:3"]
    assert scope["dirty"].stats()["total_size"] == 0


def test_every_method_is_named() -> None:
    (table,) = re.findall(r"## Methods\n\n(.*?)\n\n", PAGE, re.DOTALL)
    named = set(re.findall(r"`(\w+)\(", table))
    public = {name for name in dir(Ick) if not name.startswith("_")}
    assert public - named - set(dir(Structure)) == {"pipeline", "kind"}
