"""The site as a reader has it who has unpacked it: from file://, without a server or a network."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from support.docs_environment import ROOT, need_docs_environment, run

pytestmark = pytest.mark.slow

LOADING = {"src", "srcset", "data", "poster", "background"}
# The theme loads these where a page has a diagram, or a browser lacks ResizeObserver; and it asks
# this server where a repository is named. The tests see to it that none of it is so.
ON_DEMAND = {
    "https://unpkg.com/mermaid@11/dist/mermaid.min.js",
    "https://unpkg.com/resize-observer-polyfill",
}
REMOTE = r"(?:https?:)?//"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    need_docs_environment()
    folder = tmp_path_factory.mktemp("site") / "site"
    built = run("docs.sh", folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_a_link_to_no_heading_fails_the_build(tmp_path: Path) -> None:
    """In a checkout of its own: --strict counts only the warnings that mkdocs prints."""
    need_docs_environment()
    own = {"docs", "scripts", ".cache", ".git"}
    for each in ROOT.iterdir():
        if each.name not in own:
            (tmp_path / each.name).symlink_to(each)
    for name in ("docs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "docs").symlink_to(ROOT / ".cache" / "docs")
    with (tmp_path / "docs" / "words.md").open("a") as page:
        page.write("\nSee [it](ick.md#no-such-heading).\n")
    command = ["bash", tmp_path / "scripts" / "docs.sh"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    assert "does not contain an anchor '#no-such-heading'" in built.stderr


class Loaded(HTMLParser):
    """The addresses that a page loads without being asked, and the classes of its parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_link = tag == "link" and name == "href"
            if (name in LOADING or is_link) and value and re.match(REMOTE, value):
                self.found.append(value)
            if name == "style" and value:
                self.found += remote_in_style(value)
            if name == "class" and value:
                self.classes |= set(value.split())


def remote_in_style(text: str) -> list[str]:
    """Return the addresses of other servers that a style sheet loads."""
    return re.findall(rf"(?:url\(\s*[\"']?|@import\s+[\"'])({REMOTE}[^\"')]+)", text)


def remote_in_script(text: str) -> set[str]:
    """Return the addresses of other servers with which a script calls something."""
    return set(re.findall(rf"[\w$]\(\s*[\"'`]({REMOTE}[\w.-]+/[^\"'`]*)", text))


def test_the_checks_see_what_they_look_for() -> None:
    page = (
        '<link rel="icon" href="//a.test/i"><img src="https://a.test/p"><a href="https://b.test">'
    )
    assert Loaded(page).found == ["//a.test/i", "https://a.test/p"]
    assert remote_in_style("a{background:url('https://a.test/p')}") == ["https://a.test/p"]
    assert remote_in_style('@import "https://a.test/s";') == ["https://a.test/s"]
    assert remote_in_script('importScripts("https://a.test/s.js")') == {"https://a.test/s.js"}


def test_nothing_is_loaded_from_another_server(site: Path) -> None:
    kinds: dict[str, int] = {}
    for path in site.rglob("*"):
        if path.suffix not in {".html", ".css", ".js"}:
            continue
        kinds[path.suffix] = kinds.get(path.suffix, 0) + 1
        text = path.read_text("utf-8")
        if path.suffix == ".html":
            page = Loaded(text)
            assert page.found == [], path
            assert "mermaid" not in page.classes, path
            assert 'data-md-component="source"' not in text, path
            for script in re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL):
                assert remote_in_script(script) == set(), path
            for style in re.findall(r"<style[^>]*>(.*?)</style>", text, re.DOTALL):
                assert remote_in_style(style) == [], path
        elif path.suffix == ".css":
            assert remote_in_style(text) == [], path
        elif path.name != "search_index.js":
            # The index is the pages' text.
            assert remote_in_script(text) <= ON_DEMAND, path
    assert kinds[".html"] > 50
    assert kinds[".css"] >= 1
    assert kinds[".js"] >= 3


def test_no_block_is_shown_as_it_was_written(site: Path) -> None:
    # GitHub begins a list or a table in places where the site's Markdown wants an empty line.
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8").partition("<article")[2].partition("</article>")[0]
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL)
        raw = re.findall(r"^(?:<p>|<li>)?\s*(?:[|]|[-*] |\d+\. |```|#+ |:::).{0,70}", text, re.M)
        # A paragraph may begin a line with a number and a dot: "answered by a\n405. A form ...".
        assert [each for each in raw if not re.match(r"\s*\d{3}\. ", each)] == [], path


@pytest.fixture
def open_file(chromium: Any, site: Path) -> Iterator[Callable[[str], Any]]:
    """Open a page of the site; at the end none may have had an error or asked another server."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(120_000)
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: message.type == "error" and said.append(message.text))
    page.on(
        "request",
        lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url),
    )

    def opened(name: str) -> Any:
        page.goto((site / name).as_uri())
        return page

    yield opened
    context.close()
    assert said == []


@pytest.mark.parametrize("start", ["index.html", "reference/workstealing.structures.html"])
def test_a_search_finds_a_page_without_a_server(
    open_file: Callable[[str], Any], start: str
) -> None:
    page = open_file(start)
    page.click("input.md-search__input")
    page.keyboard.type("backwash")
    page.wait_for_selector(".md-search-result__item a")
    titles = page.locator(".md-search-result__item h1").all_inner_texts()
    assert "Ick" in titles
    page.locator(".md-search-result__item a", has_text="reserve").first.click()
    page.wait_for_url("**/ick.html*")
    assert "backwash" in page.locator("article").inner_text()


def test_the_reference_shows_a_signature_and_marks_what_is_awaited(
    open_file: Callable[[str], Any],
) -> None:
    page = open_file("reference/workstealing.structures.html")

    def shown(name: str) -> str:
        heading = page.locator(f'[id="workstealing.structures.{name}"]')
        signature = heading.locator("xpath=following-sibling::*[1]")
        return " ".join(f"{heading.inner_text()} {signature.inner_text()}".split())

    assert "async" in shown("AsyncIck.reserve")
    assert "async" not in shown("Ick.reserve")
    assert "reserve(n: int, backwash: bool = False) -> Batch" in shown("Ick.reserve")


def test_llms_txt_names_pages_that_there_are(site: Path) -> None:
    pages = re.findall(r"^- \[[^]]+\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"), re.M)
    assert len(pages) > 50
    assert [page for page in pages if not (site / page).is_file()] == []
