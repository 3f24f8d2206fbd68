"""docs/durable_keys.md says what is so."""

from __future__ import annotations

import re

from support.pages import running, text_of
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
    with running("docs/durable_keys.md", replace={"redis.Redis()": "of_the_test"}) as page:
        page.run(replies=4, of_the_test=redis7.client())
        page.run(replies=2)
        page.run(replies=1)
