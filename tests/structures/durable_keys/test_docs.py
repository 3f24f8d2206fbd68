"""docs/durable_keys.md says what is so."""

from __future__ import annotations

import re
from typing import Any

from support.pages import blocks_of, run_page, text_of
from support.servers import RedisServer
from workstealing.structures import DurableKeys

PAGE = text_of("docs/durable_keys.md")


def test_every_method_is_named() -> None:
    (paragraph,) = re.findall(r"## Commands\n\n(.*?)\n\n", PAGE, re.DOTALL)
    outside = re.sub(r"\(with [^)]*\)", "", paragraph)
    named = re.findall(r"`(\w+)`", outside)
    assert len(named) == 17
    assert all(hasattr(DurableKeys, name) for name in named)


def test_the_code_runs(redis7: RedisServer) -> None:
    blocks = [each.code for each in blocks_of("docs/durable_keys.md")]
    assert len(blocks) == 3
    given = {"of_the_test": redis7.client()}
    here = {"redis.Redis()": "of_the_test"}
    scope = run_page("docs/durable_keys.md", given, replace=here)
    scope["of_the_test"].flushall()
    scope["keys"].forget()
    answers = re.findall(r"^(keys\.\S.*?\))\s+# ([^;\n]+)", blocks[0], re.MULTILINE)
    assert len(answers) == 4
    for call, reply in answers:
        assert eval(call, scope) == eval(reply), call
    scope["token"] = scope["keys"].acquire("report:8", lease=30)
    held = re.findall(r"^    (keys\.\S.*?\))\s+# (\w+);", blocks[1], re.MULTILINE)
    assert len(held) == 2
    for call, reply in held:
        assert eval(call, scope) is eval(reply), call
    (queued,) = re.findall(r"# (\[.*\]), in one round trip", blocks[2])
    replies: list[Any] = []
    exec(
        blocks[2].replace("p.execute()", "replies.extend(p.execute())"),
        scope | {"replies": replies},
    )
    assert replies == eval(queued)
