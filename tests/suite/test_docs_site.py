"""The pages of the site: whence they are taken, where their links lead, and in which order."""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOME = "https://code.test/them/workstealing"


@pytest.fixture
def site(load_script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("WORKSTEALING_HOME_URL", HOME)
    return load_script("docs_site")


def pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        aim = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(aim, list):
            yield from pages_of(aim)
        else:
            yield aim


@pytest.mark.parametrize(
    ("path", "target", "leads"),
    [
        ("docs/ick.md", "sharded_ick.md#methods", "sharded_ick.md#methods"),
        ("docs/survey.md", "survey.png", "survey.png"),
        ("docs/ick.md", "../README.md#more", "index.md#more"),
        ("docs/ick.md", "../lua/README.md", "keys.md"),
        ("README.md", "docs/ick.md", "ick.md"),
        ("README.md", "lua/README.md", "keys.md"),
        ("docs/ick.md", "#methods", "#methods"),
        ("docs/ick.md", "https://redis.test/x", "https://redis.test/x"),
        ("docs/ick.md", "../examples/tenants/", f"{HOME}/tree/vVERSION/examples/tenants"),
        ("docs/ick.md", "../CHANGELOG.md#x", f"{HOME}/blob/vVERSION/CHANGELOG.md#x"),
        ("README.md", "SECURITY.md", f"{HOME}/blob/vVERSION/SECURITY.md"),
    ],
)
def test_a_link_leads_to_a_page_or_to_the_project(
    site: ModuleType, path: str, target: str, leads: str
) -> None:
    version = site.artifacts.project()["project"]["version"]
    text = f"See [it]({target}).\n\n```\n[it]({target})\n```\n"
    expected = f"See [it]({leads.replace('VERSION', version)}).\n\n```\n[it]({target})\n```\n"
    assert site.moved(text, path, site.pages()) == expected


def test_a_link_to_nothing_ends_it(site: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"links to examples/nothing, which does not exist"):
        site.moved("[it](../examples/nothing)", "docs/ick.md", site.pages())


def test_each_link_of_each_page_leads_somewhere(site: ModuleType) -> None:
    taken = site.pages()
    for path, page in taken.items():
        if not path.endswith(".md"):
            continue
        text = site.moved((ROOT / path).read_text("utf-8"), path, taken)
        for target in site.artifacts.links(text):
            if target.startswith(("#", "http")):
                continue
            aim = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
            assert aim.partition("#")[0] in taken.values(), (path, target)


def test_the_order_has_each_page_once(site: ModuleType) -> None:
    pytest.importorskip("pyspark")
    listed = list(pages_of(site.navigation()))
    written = [page for page in site.pages().values() if page.endswith(".md")]
    assert sorted(listed) == sorted([*written, *site.reference()])


def test_spark_stands_together_and_drawings_are_no_pages(site: ModuleType) -> None:
    sections = [list(pages_of([entry])) for entry in site.navigation()]
    (spark,) = [pages for pages in sections if "spark.md" in pages]
    assert len(spark) == 9
    assert all(page.startswith("spark") for page in spark)
    assert not any("reading" in page for page in site.pages().values())


def test_each_supported_name_is_in_the_reference(
    site: ModuleType, load_script: Callable[[str], ModuleType]
) -> None:
    pytest.importorskip("pyspark")
    pages = site.reference()
    for namespace, names in load_script("public_names").supported().items():
        listed = re.findall(r"^::: (\S+)$", pages[f"reference/{namespace}.md"], re.MULTILINE)
        assert len(listed) == len(set(listed)) == len(names)
        assert {path.rpartition(".")[2] for path in listed} == {
            name.rpartition(".")[2] for name, _ in names
        }


def test_members_are_those_that_this_package_defines(site: ModuleType) -> None:
    from workstealing import Outcome, errors
    from workstealing.structures import AsyncIck, Batch, VolatileHashes

    operations = {"ack", "add", "dead", "delete", "discard", "exchange", "reserve", "revive"}
    assert operations <= set(site.own_members(AsyncIck))
    assert not {"size_steps", "names", "client", "_run"} & set(site.own_members(AsyncIck))
    # redis-py documents its own.
    assert "hset" not in site.own_members(VolatileHashes)
    assert "append" not in site.own_members(Batch)
    assert "DISMISSED" in site.own_members(Outcome)
    assert site.own_members(errors.LayoutError) == []
    assert all(inspect.isroutine(getattr(AsyncIck, name)) for name in operations)


def test_llms_txt_has_a_line_for_each_page(site: ModuleType) -> None:
    taken = site.pages()
    texts = {
        page: (ROOT / path).read_text("utf-8")
        for path, page in taken.items()
        if path.endswith(".md")
    }
    listed = list(pages_of(site.navigation()))
    texts |= {page: f"# {page}\n\nNames.\n" for page in listed if page.startswith("reference/")}
    said = site.llms(site.navigation(), texts).splitlines()
    assert said[0] == "# workstealing"
    assert said[2].startswith("> Background maintenance of Redis")
    lines = [line for line in said if line.startswith("- ")]
    found = [re.fullmatch(r"- \[[^]]+\]\(([^)]+)\.html\): (.+)", line) for line in lines]
    assert [f"{each[1]}.md" if each else "" for each in found] == listed
    assert all(each and each[2][-1] in ".:?!" for each in found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# A\n\nOne [link](x.md). Two.\n", "One link."),
        ("# A\n\n```\nx = 1. \n\ny\n```\n\n| a |\n\n    code\n\nWhich? That.\n", "Which?"),
        ("# A\n\nFrom 6.2 on, **all**\nof it. And more.\n", "From 6.2 on, all of it."),
        ("# A\n", ""),
    ],
)
def test_the_first_sentence(site: ModuleType, text: str, sentence: str) -> None:
    assert site.first_sentence(text) == sentence
