"""The pages' code: their Python blocks are executed, and their command lines are found.

A test runs a whole page, or one section of it:

    with running("docs/ick.md", replace={"redis.Redis()": "the_tests_client"}) as page:
        names = page.run(the_tests_client=redis7.client())
        assert names["dirty"].stats()["total_size"] == 1
        page.run_rest()

It fails if it leaves a block out that EXEMPT does not list. So a page's literal name in a test says
that each of its blocks runs, and `claims_of` reads these names without running any test.
`tests/test_guides.py` compares them with the pages. A traceback names the page and its line.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import io
import re
import shlex
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from workstealing.cli.arguments import parse

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ("python", "py")
SHELL = ("sh", "bash", "console", "crontab", "")

EXEMPT: dict[tuple[str, str], str] = {
    ("docs/spark_epilogues.md", "every_task=True"): (
        "it makes a session of its own; tests/spark/test_daemon.py makes one in a process"
    ),
}
"""The blocks that no test executes: the page and a text of the block alone, and the reason."""
MOST_EXEMPT = 10


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of code."""

    page: str
    section: str
    language: str
    line: int
    code: str

    @property
    def place(self) -> str:
        """The page and the line, as a traceback has them."""
        return f"{self.page}:{self.line}"

    @property
    def is_exempt(self) -> bool:
        """Whether EXEMPT lists it."""
        return any(page == self.page and text in self.code for page, text in EXEMPT)


def pages() -> list[str]:
    """Return the pages whose Python blocks run, by their paths below the checkout's root.

    docs/reading has records of what pages said when somebody read them.
    """
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    found = [each for each in found if (ROOT / "docs" / "reading") not in each.parents]
    return ["README.md", *sorted(each.relative_to(ROOT).as_posix() for each in found)]


def text_of(page: str) -> str:
    """Return a page's text; its path is below the checkout's root."""
    return (ROOT / page).read_text("utf-8")


def blocks_of(page: str, languages: tuple[str, ...] = PYTHON) -> list[Block]:
    """Return a page's fenced blocks in these languages, in order."""
    return [each for each in blocks_in(page, text_of(page)) if each.language in languages]


def blocks_in(page: str, text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page's text, indented ones included."""
    section, fence, language, code, line = "", "", "", [""], 0
    for number, each in enumerate(text.splitlines(), 1):
        if fence:
            if each.strip() != fence:
                code.append(each)
                continue
            yield Block(page, section, language, line, textwrap.dedent("\n".join([*code, ""])))
            fence = ""
        elif opening := re.match(r" *(`{3,}|~{3,})(\w*)", each):
            fence, language, code, line = opening[1], opening[2], [], number + 1
        elif each.startswith("## "):
            section = each.removeprefix("## ").strip()
    assert not fence, f"{page}:{line}: this block has no end"


class Running:
    """The Python blocks of a page, or of one section, that a test executes one by one.

    At the end of the `with` each block has run, except those that EXEMPT lists.
    """

    def __init__(self, page: str, section: str | None, replace: Mapping[str, str]) -> None:
        blocks = [each for each in blocks_of(page) if section in (None, each.section)]
        self._left = [each for each in blocks if not each.is_exempt]
        assert self._left, f"{page} has no Python block that could run in section {section!r}"
        for old in replace:
            is_there = any(old in each.code for each in self._left)
            assert is_there, f"{page} has no {old!r} that could be replaced"
        self._replace = replace
        # As a program's own: Flask looks for its module, and Spark takes its functions along.
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            left = [each.place for each in self._left]
            assert not left, f"the test has not executed the block at {', '.join(left)}"

    @property
    def next(self) -> Block:
        """The block that runs next, as the page shows it."""
        assert self._left, "all blocks have run"
        return self._left[0]

    def take(self) -> str:
        """Return the next block's code: it is a program's, which the test must execute itself."""
        code = self.next.code
        del self._left[0]
        for old, new in self._replace.items():
            code = code.replace(old, new)
        return code

    def run(self, *, replies: int = 0, **given: Any) -> dict[str, Any]:
        """Execute the next block with all names so far and the given ones; return the names.

        Arguments:
            replies: how many calls of the block have their reply in a comment behind them, up to a
                semicolon; each is compared. 0: no comment is looked at.
            given: more names.
        """
        block = self.next
        self.names.update(given)
        # The empty lines make the traceback's line the page's.
        source = "\n" * (block.line - 1) + self.take()
        tree = ast.parse(source)
        compared = _Replies(block.page, source)
        if replies:
            tree = ast.fix_missing_locations(compared.visit(tree))
            self.names[_COMPARE] = compared.compare
        # The test's own __future__ is not the reader's.
        exec(compile(tree, str(ROOT / block.page), "exec", dont_inherit=True), self.names)
        self.names.pop(_COMPARE, None)
        assert compared.count == replies, f"{block.place}: {compared.count} replies were compared"
        return self.names

    def run_rest(self, **given: Any) -> dict[str, Any]:
        """Execute all blocks that are left, in order; return the names."""
        self.names.update(given)
        while self._left:
            self.run()
        return self.names


_COMPARE = "_compare_a_reply"


class _Replies(ast.NodeTransformer):
    """Lets each call whose comment is a literal be compared with it, when it runs."""

    def __init__(self, page: str, source: str) -> None:
        self.count = 0
        self._page = page
        self._lines = source.splitlines()

    def compare(self, reply: Any, said: str, line: int) -> None:
        assert reply == ast.literal_eval(said), f"{self._page}:{line}: {said} was {reply!r}"
        self.count += 1

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        comment = self._lines[(node.end_lineno or 1) - 1][node.end_col_offset :]
        said = comment.partition("# ")[2].partition(";")[0].strip()
        try:
            ast.literal_eval(said)
        except (SyntaxError, ValueError):
            return node
        told = [node.value, ast.Constant(said), ast.Constant(node.lineno)]
        call = ast.Call(ast.Name(_COMPARE, ast.Load()), told, [])
        return ast.copy_location(ast.Expr(ast.copy_location(call, node)), node)


def running(
    page: str, *, section: str | None = None, replace: Mapping[str, str] | None = None
) -> Running:
    """Return a page's Python blocks, for a `with`.

    Arguments:
        page: its path below the checkout's root, as a literal.
        section: the heading (`##`) whose blocks are meant, as a literal; None for the whole page.
        replace: texts of the page, such as the address of a server, and those of the test.
    """
    return Running(page, section, replace or {})


def run_page(
    page: str,
    names: Mapping[str, Any] | None = None,
    *,
    section: str | None = None,
    replace: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Execute all Python blocks of a page in order, with these names; return all names.

    Arguments:
        names: those that the page takes for granted.
        others: as of `running`.
    """
    with Running(page, section, replace or {}) as whole:
        return whole.run_rest(**(names or {}))


def claims_of(path: Path) -> Iterator[tuple[str, str | None]]:
    """Yield each page and section that the tests of a module run, by its source alone.

    The page is a literal, or a parameter of the test whose values are literals, there or in a list
    or as the keys of a dict of the module.
    """
    module = ast.parse(path.read_text("utf-8"))
    for test in ast.walk(module):
        if not isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for call in ast.walk(test) if test.name.startswith("test_") else ():
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in ("running", "run_page")
            ):
                place = f"{path.name}:{call.lineno}"
                sections = [each.value for each in call.keywords if each.arg == "section"]
                section = _texts(sections[0], test, place, module)[0] if sections else None
                for page in _texts(call.args[0], test, place, module):
                    yield page, section


def _texts(
    node: ast.expr,
    test: ast.FunctionDef | ast.AsyncFunctionDef,
    place: str,
    module: ast.Module,
) -> list[str]:
    """Return the texts that an argument of a test's call stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    for mark in test.decorator_list:
        # @pytest.mark.parametrize("page", [...]), or ("page", "more"), [(...), ...].
        if isinstance(mark, ast.Call) and isinstance(node, ast.Name) and len(mark.args) == 2:
            names = ast.literal_eval(mark.args[0])
            values = _values_of(mark.args[1], module)
            if names == node.id:
                return list(values)
            if node.id in names and not isinstance(names, str):
                return [each[names.index(node.id)] for each in values]
    raise AssertionError(f"{place} names its page by neither a literal nor a parameter")


def _values_of(node: ast.expr, module: ast.Module) -> list[Any]:
    """Return literal values, or those of a name of the module: a list's, or a dict's keys."""
    if isinstance(node, ast.Name):
        found = [
            each.value
            for each in module.body
            if isinstance(each, ast.Assign)
            and isinstance(each.targets[0], ast.Name)
            and each.targets[0].id == node.id
        ]
        node = found[0]
    if isinstance(node, ast.Dict):
        return [ast.literal_eval(key) for key in node.keys if key is not None]
    return list(ast.literal_eval(node))


def forgotten(blocks: Iterable[Block], claims: Collection[tuple[str, str | None]]) -> list[Block]:
    """Return the blocks that no test runs and that EXEMPT does not list, by all tests' claims."""
    return [
        each
        for each in blocks
        if not each.is_exempt
        and (each.page, None) not in claims
        and (each.page, each.section) not in claims
    ]


@dataclass(frozen=True, slots=True)
class Line:
    """A command line of a page: its words without assignments, pipes and redirections.

    `is_whole` is False for a mention in prose, which may leave arguments out.
    """

    place: str
    words: tuple[str, ...]
    is_whole: bool = True


def command_lines(page: str) -> Iterator[Line]:
    """Yield the commands of a page: of its blocks for a shell, indented ones, and in its prose."""
    text = text_of(page)
    fenced: set[int] = set()
    for block in blocks_in(page, text):
        rows = block.code.splitlines()
        fenced.update(range(block.line - 1, block.line + len(rows) + 1))
        if block.language in SHELL:
            # Of a console, only the lines behind its prompt are commands.
            asked = block.language in ("console", "")
            has_prompt = asked and any(row.startswith("$ ") for row in rows)
            for number, row in _joined(rows):
                if not has_prompt or row.startswith("$ "):
                    yield from _commands(f"{page}:{block.line + number}", row)
    rows = ["" if number in fenced else row for number, row in enumerate(text.splitlines(), 1)]
    for number, row in _joined(rows):
        if row.startswith("    ") and _OURS.match(row.strip()):
            yield from _commands(f"{page}:{number + 1}", row)
    prose = "\n".join(rows)
    for found in re.finditer(r"(?<!`)`((?:workstealing|make)\s[^`]+)`(?!`)", prose):
        place = f"{page}:{prose[: found.start()].count(chr(10)) + 1}"
        # Brackets stand for what may be left out.
        for line in _commands(place, " ".join(re.sub(r"[\[\]]", "", found[1]).split())):
            yield dataclasses.replace(line, is_whole=False)


_OURS = re.compile(r"(?:\$ )?(?:[\w./-]*/)?(?:workstealing|make) ")
_ENDS = {"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>>"}


def _joined(rows: list[str]) -> Iterator[tuple[int, str]]:
    """Yield each row with those that a backslash adds to it, and its number."""
    kept, first = "", 0
    for number, row in enumerate(rows):
        first = first if kept else number
        kept += row
        if kept.endswith("\\"):
            kept = kept[:-1]
        else:
            yield first, kept
            kept = ""


def _commands(place: str, row: str) -> Iterator[Line]:
    """Yield the commands of a row that are ours: `workstealing`, `make`, a script."""
    lexer = shlex.shlex(row.strip().removeprefix("$ "), posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        # Output of a program, which no shell reads.
        return
    if words and re.fullmatch(r"[*\d/,-]+", words[0]):
        words = words[5:]
    command: list[str] = []
    for word in [*words, ";"]:
        if word not in _ENDS:
            command.append(word)
            continue
        while command and re.match(r"\w+=", command[0]):
            del command[0]
        if command[1:3] == ["-m", "workstealing"]:
            command = command[2:]
        if command:
            command[0] = command[0].rpartition("/")[2]
            if command[0] in ("workstealing", "make"):
                yield Line(place, tuple(command))
        command = [">"] if word.endswith((">", "<")) else []


def refusal_of(line: Line) -> str | None:
    """Return the sentence by which a page's command is refused, or None. Nothing runs."""
    name, *words = line.words
    if name == "make":
        known = re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.M)
        targets = [each for each in words if "=" not in each]
        wrong = [each for each in targets if each not in known]
        return f"{line.place}: make {wrong or targets}" if wrong or not targets else None
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            parse([_SHELLS.get(each, each) for each in words])
    except SystemExit as end:
        told = said.getvalue()
        is_mention = not line.is_whole and any(each in told for each in _LEFT_OUT)
        return f"{line.place}: {told}" if end.code and not is_mention else None
    return None


_LEFT_OUT = ("the following arguments are required", "expected one argument")
_SHELLS = {"SHELL": "bash"}
"""The one argument that a page names by a word, and that is one of a few."""
