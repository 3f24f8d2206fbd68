"""The page of the supported names: it says the names that there are, and they are few."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from workstealing.structures import VolatileHashes

pytest.importorskip("pyspark")
ROOT = Path(__file__).resolve().parents[2]
MOST_NAMES = 132


@pytest.fixture(scope="module")
def names() -> Iterator[ModuleType]:
    """The script, as a module."""
    spec = importlib.util.spec_from_file_location(
        "public_names", ROOT / "scripts" / "public_names.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_page_says_the_names_that_there_are(names: ModuleType) -> None:
    assert names.PAGE.read_text() == names.page(), "run: python scripts/public_names.py"


def test_they_are_few_enough_to_be_known(names: ModuleType) -> None:
    assert names.counted(names.supported()) <= MOST_NAMES


def test_each_has_a_sentence(names: ModuleType) -> None:
    silent = [
        f"{namespace}.{name}"
        for namespace, found in names.supported().items()
        for name, value in found
        if not names.is_record(name, value)
        and name not in names.VALUES
        and not names.first_sentence(value).rstrip(":").endswith((".", "`", ")"))
    ]
    assert silent == []


def test_results_are_told_from_names_that_are_called(names: ModuleType) -> None:
    from workstealing.structures import Batch, Drift

    assert names.is_record("Drift", Drift)
    assert not names.is_record("VolatileHashes", VolatileHashes)
    assert inspect.isclass(Batch)
