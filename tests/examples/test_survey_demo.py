"""The demo of the survey: real programs are killed, and nothing that lives is lost."""

from __future__ import annotations

import re

import pytest

from support.examples import EXAMPLES, run_by_readme

pytestmark = [pytest.mark.slow, pytest.mark.real]


def test_garbage_of_real_programs_goes_and_nothing_else() -> None:
    said = run_by_readme(EXAMPLES / "survey_demo", "--seconds", "5")
    assert "nothing that lives was lost" in said
    assert "LOST" not in said
    found = {
        name.strip(): (int(removed), int(left))
        for name, removed, left in re.findall(
            r"^(.{30}) +\d+ +(\d+) +(\d+)$", said.replace(",", ""), re.M
        )
    }
    assert len(found) == 7
    assert {name: left for name, (_, left) in found.items() if left} == {}
    for name in ("replies of Celery", "acknowledged orders", "tags of expired pages"):
        assert found[name][0] > 0, said
