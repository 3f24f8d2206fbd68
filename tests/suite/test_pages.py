"""support/pages.py: a page's blocks run as they stand, and none is left out unseen."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

import support.pages
from support.pages import (
    Line,
    blocks_of,
    claims_of,
    command_lines,
    forgotten,
    refusal_of,
    run_page,
    running,
)

PAGE = """# A page

    make demo    # as in the README

## First

```python
import redis

client = redis.Redis()
len("abc")  # 3; as every time
"b" * 2  # "bb"
made = [client]  # no reply
```

Say `workstealing status --url redis://localhost` or `make test TEST_ARGS="-k a"`.

```console
$ workstealing run tidy --dry-run && echo well | workstealing nonsense
  made by workstealing nonsense
$ WORKSTEALING_APP=shop:recruiter venv/bin/workstealing jobs > jobs.txt
```

## Second

1. In a list:

   ```py
   def second():
       return made
   ```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page named page.md below the root, which a test may change."""
    monkeypatch.setattr(support.pages, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def change(page: Path, old: str, new: str) -> None:
    text = page.read_text()
    assert text.count(old) == 1
    page.write_text(text.replace(old, new))


@pytest.mark.usefixtures("page")
def test_the_blocks_run_in_order_with_their_replies() -> None:
    first, second = blocks_of("page.md")
    assert (first.section, first.place) == ("First", "page.md:8")
    assert (second.section, second.place) == ("Second", "page.md:29")
    with running("page.md", replace={"redis.Redis()": "of_the_test"}) as whole:
        whole.run(replies=2, of_the_test="a client")
        names = whole.run()
    assert names["second"]() == ["a client"]


def test_a_broken_block_fails_at_its_line_of_the_page(page: Path) -> None:
    change(page, "made = [client]", "made = [cleint]")
    with pytest.raises(NameError, match="cleint") as broken:
        run_page("page.md")
    (last,) = traceback.extract_tb(broken.value.__traceback__)[-1:]
    assert (last.filename, last.lineno) == (str(page), 13)
    assert last.line == "made = [cleint]  # no reply"


def test_a_wrong_reply_fails(page: Path) -> None:
    change(page, "# 3; as", "# 4; as")
    with (
        pytest.raises(AssertionError, match=r"page\.md:11: 4 was 3"),
        running("page.md", section="First") as first,
    ):
        first.run(replies=2)
    change(page, "# 4; as", "# often; as")
    with (
        pytest.raises(AssertionError, match=r"page\.md:8: 1 replies were compared"),
        running("page.md", section="First") as first,
    ):
        first.run(replies=2)


@pytest.mark.usefixtures("page")
def test_a_block_that_is_left_out_fails() -> None:
    with (
        pytest.raises(AssertionError, match=r"not executed the block at page\.md:29"),
        running("page.md") as whole,
    ):
        whole.run()


@pytest.mark.usefixtures("page")
def test_a_section_and_a_text_that_are_not_there_fail() -> None:
    with pytest.raises(AssertionError, match="no Python block that could run in section 'Third'"):
        run_page("page.md", section="Third")
    with pytest.raises(AssertionError, match="'connect' that could be replaced"):
        run_page("page.md", replace={"connect": "of_the_test"})


@pytest.mark.usefixtures("page")
def test_an_exempt_block_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.pages, "EXEMPT", {("page.md", "import redis"): "a reason"})
    names = run_page("page.md")
    assert "second" in names
    assert "client" not in names


def test_a_readers_file_has_no_future_of_the_tests(page: Path) -> None:
    change(page, "def second():", "def second() -> list:")
    names: dict[str, Any] = run_page("page.md")
    assert names["second"].__annotations__ == {"return": list}


def test_a_block_without_an_end_is_told(page: Path) -> None:
    page.write_text("```python\n1\n")
    with pytest.raises(AssertionError, match=r"page\.md:2: this block has no end"):
        blocks_of("page.md")


def test_the_claims_of_tests_are_read_from_their_source(tmp_path: Path) -> None:
    tests = tmp_path / "test_it.py"
    tests.write_text(
        "def helper():\n    run_page('docs/never.md')\n"
        "def test_one():\n    run_page('docs/a.md', {})\n"
        "class TestIt:\n    async def test_two(self):\n"
        "        with running('docs/b.md', section='B') as page: ...\n"
    )
    assert set(claims_of(tests)) == {("docs/a.md", None), ("docs/b.md", "B")}
    tests.write_text(
        "@pytest.mark.parametrize('page', ['docs/a.md', 'docs/b.md'])\n"
        "def test_one(page):\n    run_page(page)\n"
        "@pytest.mark.parametrize(('name', 'page'), [('x', 'docs/c.md'), ('y', 'docs/d.md')])\n"
        "def test_two(name, page):\n    run_page(page, {'name': name})\n"
    )
    assert [page for page, _ in claims_of(tests)] == [f"docs/{each}.md" for each in "abcd"]
    tests.write_text("def test_one():\n    run_page(page)\n")
    with pytest.raises(AssertionError, match=r"test_it\.py:2 names its page by neither"):
        set(claims_of(tests))


@pytest.mark.usefixtures("page")
def test_a_block_that_no_test_runs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = blocks_of("page.md")
    assert forgotten([first, second], {("other.md", None), ("other.md", "First")}) == [
        first,
        second,
    ]
    assert forgotten([first, second], {("page.md", "First")}) == [second]
    assert forgotten([first, second], {("page.md", None)}) == []
    monkeypatch.setattr(support.pages, "EXEMPT", {("page.md", "def second"): "a reason"})
    assert forgotten([first, second], {("page.md", "First")}) == []


@pytest.mark.usefixtures("page")
def test_the_command_lines_are_found() -> None:
    found = [(line.place, " ".join(line.words), line.is_whole) for line in command_lines("page.md")]
    assert sorted(found) == [
        ("page.md:16", "make test TEST_ARGS=-k a", False),
        ("page.md:16", "workstealing status --url redis://localhost", False),
        ("page.md:19", "workstealing nonsense", True),
        ("page.md:19", "workstealing run tidy --dry-run", True),
        ("page.md:21", "workstealing jobs", True),
        ("page.md:3", "make demo", True),
    ]


@pytest.mark.parametrize(
    ("command", "is_whole", "told"),
    [
        ("workstealing run tidy --dry-run", True, None),
        ("workstealing run tidy --dryrun", True, "unrecognized arguments: --dryrun"),
        ("workstealing statsu", True, "invalid choice: 'statsu'"),
        ("workstealing run", True, "the following arguments are required: JOB"),
        ("workstealing run", False, None),
        ("workstealing dashboard --url", False, None),
        ("workstealing dashboard --ulr", False, "unrecognized arguments: --ulr"),
        ("make test TEST_ARGS=-x", True, None),
        ("make tset", True, "tset"),
        ("make", True, "make []"),
    ],
)
def test_a_misspelt_command_is_refused(command: str, is_whole: bool, told: str | None) -> None:
    refusal = refusal_of(Line("page.md:1", tuple(command.split()), is_whole))
    assert refusal is None if told is None else told in str(refusal)
