"""docs/survey.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.servers import RedisServer
from workstealing.survey import report_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "survey.md").read_text("utf-8")


def test_the_result_is_read_in_python(
    redis7: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line that the page's code prints is one that removes what the page says."""
    (part,) = re.findall(r"## In Python\n(.*?)\n## ", PAGE, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    client = redis7.client()
    client.set("page:1", "x")
    client.sadd("conj:shop:id=1", "page:1", "page:2", "page:3")
    scope: dict[str, Any] = {"client": client}
    exec(code, scope)
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
