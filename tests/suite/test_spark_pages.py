"""The pages on Spark hold together: each name in their code comes from the page itself.

A reader copies a block, and whatever it takes for granted is a NameError in the session. `spark`
alone comes from the first program of docs/spark.md, to which each page links.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator

import pytest

from support.pages import blocks_of, pages, text_of

SPARK = sorted(each for each in pages() if re.fullmatch(r"docs/(from_)?spark[a-z_]*\.md", each))
SESSION = "spark.md#the-first-program"


def defined_by(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a block gives to something: of functions and their arguments, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def undefined(codes: Iterable[str], given: Iterable[str] = ()) -> list[str]:
    """Return the names that blocks use, and that neither they nor earlier ones define."""
    known = {*dir(builtins), "__file__", "__name__", *given}
    missing = []
    for code in codes:
        tree = ast.parse(code)
        known.update(defined_by(tree))
        used = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
        missing += [node.id for node in used if node.id not in known]
    return missing


def modules_named(codes: Iterable[str]) -> set[str]:
    """Return the modules of the import paths ("module:function") that blocks have as texts."""
    return {
        found[1]
        for code in codes
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (found := re.fullmatch(r"([a-z_.]+):[a-z_]+", node.value))
    }


def test_an_undefined_name_is_found() -> None:
    assert undefined(["a = b"]) == ["b"]
    assert undefined(["def f(x):\n    return x + y", "f(z)"]) == ["y", "z"]
    assert undefined(["import os.path as p, sys", "p, sys, len, spark"], ["spark"]) == []
    assert modules_named(["f('shop.jobs:make', key='item:17', other='a:b c')"]) == {"shop.jobs"}


@pytest.mark.parametrize("page", SPARK)
def test_each_name_is_defined_on_its_page(page: str) -> None:
    codes = [each.code for each in blocks_of(page)]
    given = ["spark"] if page != "docs/spark.md" else []
    assert undefined(codes, given) == []
    # A module that executors import must be one that the page tells the reader to save.
    for module in modules_named(codes) - {"workstealing"}:
        assert f"{module.rpartition('.')[2]}.py" in text_of(page), module


@pytest.mark.parametrize("page", [each for each in SPARK if each != "docs/spark.md"])
def test_each_page_with_code_says_whose_session_it_uses(page: str) -> None:
    uses = any("spark" in each.code for each in blocks_of(page))
    assert not uses or SESSION in text_of(page)


@pytest.mark.parametrize("page", SPARK)
def test_no_page_installs_from_an_index_that_lacks_the_package(page: str) -> None:
    assert "on no index yet" in text_of("README.md")
    named = re.findall(r"pip install [^\n`]*?(\S*workstealing\S*)", text_of(page))
    wrong = [each for each in named if not each.strip("'").startswith("./") and ".whl" not in each]
    assert wrong == []
