"""The API reference as griffe reads it: each supported name, its arguments, and its result."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from support.docs_environment import ROOT, need_docs_environment

pytestmark = pytest.mark.slow

Table = dict[str, dict[str, Any]]
# Names of types, and values: the sentence of `VALUES` in scripts/public_names.py stands for them.
WITHOUT_A_DOCSTRING = {"attribute", "type alias"}


@pytest.fixture(scope="module")
def read(
    load_script: Callable[[str], ModuleType], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Table]:
    """Read objects as the site has them: `read(name, ...)`."""
    python = need_docs_environment()
    folder = tmp_path_factory.mktemp("package")
    load_script("docs_site").install(folder)

    def objects(*names: str) -> Table:
        command = [python, "-P", ROOT / "scripts" / "reference_dialect.py", folder, *names]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        table: Table = json.loads(done.stdout)
        return table

    return objects


@pytest.fixture(scope="module")
def table(load_script: Callable[[str], ModuleType], read: Callable[..., Table]) -> Table:
    """Each supported name, and each of its methods."""
    pytest.importorskip("pyspark")
    names = []
    for text in load_script("docs_site").reference().values():
        for path, members in re.findall(
            r"^::: (\S+)\n    options:\n      members: (.*)$", text, re.MULTILINE
        ):
            names.append(path)
            if members != "false":
                names += [f"{path}.{name}" for name in members.strip("[]").split(", ")]
    assert len(names) > 700
    return read(*names)


def of_kind(described: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [
        each
        for section in described["sections"]
        if section["kind"] == kind
        for each in section["value"]
    ]


def text_of(described: dict[str, Any]) -> str:
    return "\n\n".join(each["value"] for each in described["sections"] if each["kind"] == "text")


def test_each_name_has_its_docstring(table: Table) -> None:
    silent = [
        name
        for name, described in table.items()
        if not described["sections"] and described["kind"] not in WITHOUT_A_DOCSTRING
    ]
    assert silent == []


def test_each_argument_that_is_described_is_one(table: Table) -> None:
    strange = [
        (name, each["name"])
        for name, described in table.items()
        for each in of_kind(described, "parameters")
        if each["name"].lstrip("*") not in {had.lstrip("*") for had in described["parameters"]}
    ]
    assert strange == []


def test_no_generator_of_steps_is_left(table: Table) -> None:
    left = [name for name, each in table.items() if "Steps" in (each.get("returns") or "")]
    assert left == []
    named = [
        (name, each["type"])
        for name, described in table.items()
        for each in of_kind(described, "returns")
        if "Steps" in (each["type"] or "")
    ]
    assert named == []


def test_no_section_is_left_in_running_text(table: Table) -> None:
    left = [
        name
        for name, described in table.items()
        if re.search(r"(?:^|\n|[.:;] )(?:Returns|Yields|Arguments): ", text_of(described))
    ]
    assert left == []


def test_an_operation_in_both_forms(table: Table) -> None:
    plain, awaited = (
        table[f"workstealing.structures.{form}.reserve"] for form in ("Ick", "AsyncIck")
    )
    assert plain["labels"] == []
    assert awaited["labels"] == ["async"]
    for described in (plain, awaited):
        assert described["parameters"] == ["self", "n", "backwash"]
        assert described["returns"] == "Batch"
        assert [each["name"] for each in of_kind(described, "parameters")] == ["n", "backwash"]
        (result,) = of_kind(described, "returns")
        assert result["type"] == "Batch"
        assert result["said"].startswith("a `Batch` of (member, score)")
        raised = [each["type"] for each in of_kind(described, "raises")]
        assert raised == ["ConfigurationError", "LayoutError"]
        assert "One round trip for up to 1,000 members" in text_of(described)


def test_each_method_that_is_awaited_is_marked(table: Table) -> None:
    awaited = 0
    for path, described in table.items():
        owner, _, _ = path.rpartition(".")
        if described["kind"] != "function" or owner not in table:
            continue
        value = found(path)
        is_operation = hasattr(value, "steps") or hasattr(value, "asking")
        is_form = owner.rpartition(".")[2].startswith("Async")
        is_async = inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value)
        is_awaited = is_async or (is_operation and is_form)
        is_marked = "async" in described["labels"] or "AsyncIterator" in described["returns"]
        assert is_marked == is_awaited, path
        awaited += is_awaited
    assert awaited > 80


def test_the_functions_of_the_package_are_those_of_the_default_recruiter(table: Table) -> None:
    enlist, install = table["workstealing.enlist"], table["workstealing.install"]
    assert enlist["kind"] == install["kind"] == "function"
    assert enlist["returns"] == "Outcome"
    assert "self" not in install["parameters"]
    assert install["parameters"][0] == "job"


def test_the_fields_of_a_record_are_told(read: Callable[..., Table]) -> None:
    (described,) = read("workstealing.structures.LogStats").values()
    assert "entries" in {each["name"] for each in of_kind(described, "attributes")}


def test_errors_of_the_client_are_told(read: Callable[..., Table]) -> None:
    (described,) = read("workstealing.metrics.read").values()
    assert [each["type"] for each in of_kind(described, "raises")] == [
        "ConfigurationError",
        "redis.RedisError",
    ]


def test_each_function_has_the_arguments_and_the_result_that_it_has_in_python(
    table: Table,
) -> None:
    compared = 0
    for path, described in table.items():
        value = found(path)
        if described["kind"] != "function" or not inspect.isroutine(value):
            continue
        signature = inspect.signature(value)
        names = [each.removeprefix("*").removeprefix("*") for each in described["parameters"]]
        # Python has bound a class method to its class.
        names = names[1:] if "classmethod" in described["labels"] else names
        assert names == list(signature.parameters), path
        result = signature.return_annotation
        if isinstance(result, str) and described["returns"] is not None:
            # hscan_iter is redis-py's own, whose annotation lacks the type of the items.
            told = described["returns"]
            if path.endswith(".hscan_iter"):
                told = told.removesuffix("[Any]")
            assert re.sub(r"\s", "", told) == re.sub(r"\s", "", result), path
        compared += 1
    assert compared > 400


def found(path: str) -> Any:
    """Return what a path names, a module before what it holds."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise AssertionError(path)
