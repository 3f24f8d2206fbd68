"""Import paths: what is refused on the driver, and what is found in a process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workstealing.errors import ConfigurationError
from workstealing.spark.making import checked_path, load


@pytest.mark.parametrize("path", ["a:b", "package.module:function", "package.module:Class.method"])
def test_import_paths_are_taken_without_importing_anything(path: str) -> None:
    assert checked_path(path, "the recruiter") == path
    assert "package" not in sys.modules


@pytest.mark.parametrize(
    "path",
    ["", "module", "module:", ":name", "a b:c", "a:b()", "a:1b", "a..b:c", "../a:b", None, 7],
)
def test_what_is_no_import_path_is_refused_by_name(path: object) -> None:
    with pytest.raises(ConfigurationError, match=r'the recruiter is .*"package\.module:function"'):
        checked_path(path, "the recruiter")


def test_main_is_refused_because_executors_have_another() -> None:
    with pytest.raises(ConfigurationError, match="another __main__"):
        checked_path("__main__:make", "the recruiter")


def test_a_function_and_a_method_of_a_class_are_found() -> None:
    assert load("workstealing.errors:is_abort", "it")(ValueError()) is False  # type: ignore[call-arg]
    assert load("pathlib:Path.cwd", "it")() == Path.cwd()


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_package.module:make", "finds no module 'no_such_package'"),
        ("workstealing.no_such_module:make", "finds no module 'workstealing.no_such_module'"),
        ("workstealing.errors:no_such_name", "has no 'no_such_name'"),
        ("workstealing:__doc__", "is no function"),
    ],
)
def test_what_cannot_be_called_here_is_said_in_words(path: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load(path, "the client")


def test_what_the_module_itself_lacks_is_not_mistaken_for_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load("needs_more:make", "the client")
