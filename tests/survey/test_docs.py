"""docs/survey.md says what is so."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.pages import run_page, text_of
from support.servers import RedisServer
from workstealing.jobs.leftovers import (
    LIVE,
    PROVED,
    Item,
    Leftovers,
    Rule,
    key_removed,
    keys,
    look,
)
from workstealing.survey import Survey, report_of


def test_the_result_is_read_in_python(
    redis7: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that the page's code prints is one that removes what the page says."""
    client = redis7.client()
    client.set("page:1", "x")
    client.sadd("conj:shop:id=1", "page:1", "page:2", "page:3")
    scope = run_page("docs/survey.md", {"client": client}, section="In Python")
    whole, line = capsys.readouterr().out.splitlines()
    report = report_of(scope["survey"], 800.0)
    low, high = report["bytes"][1:]
    assert whole.startswith("2 keys, ")
    assert low <= report["bytes"][0] <= high
    assert whole.endswith(f" {round(report['bytes'][0])} bytes")
    assert re.fullmatch(
        r"conj:shop:id=<n> 2 recruiter\.install\(TagSetLeftovers\(client, 'conj:shop:id=\*'\),"
        r" rate=[\d.e-]+\)",
        line,
    ), line


def test_the_job_of_a_rule_of_your_own_is_offered(redis7: RedisServer) -> None:
    """The class of docs/rules.md, whose offer names a job of its own."""

    class DeadCarts(Rule):
        name = "shop.carts"
        owner = "our shop"
        finds = "Carts of users who are gone."
        certainty = PROVED
        where = keys("cart:*", "hash")

        def verdict(self, item: Item) -> Any:
            (there,) = yield look(("EXISTS", b"user:1"), watch=(b"user:1", item.key))
            return LIVE if there else key_removed(item.key)

    class CartLeftovers(Leftovers):
        def __init__(self, client: Any, pattern: str, *, idle: float) -> None:
            super().__init__(client, [DeadCarts()], name="carts")

    given = {"DeadCarts": DeadCarts, "CartLeftovers": CartLeftovers}
    rule = run_page("docs/survey.md", given, section="Rules of your own")["OldCarts"]()
    client = redis7.client()
    client.hset("cart:1", "item", 1)
    survey = Survey(client, rules=[rule])
    survey.run()
    (family,) = report_of(survey, 800.0)["families"]
    (found,) = family["findings"]
    line = "CartLeftovers(client, 'cart:*', idle=<LONGEST_IDLE>)"
    assert line in found["install"], found
    assert line in " ".join(text_of("docs/survey.md").split())
