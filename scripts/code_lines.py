"""Count the code of the package as it ships: lines that are no blank, no comment, no docstring.

    .venv/bin/python scripts/code_lines.py            a table of its folders
    .venv/bin/python scripts/code_lines.py --json     the same for programs
    .venv/bin/python scripts/code_lines.py --files    each module and script, the largest first

A line counts if a part of it is code: the tokenizer says so for Python, so a string that is no
docstring counts. The text below a name, which describes it, counts as a docstring. Public names are
those of `__all__`, in each module that has one.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("workstealing", "jobs", "lua")
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
# A long bracket, or a string, or the beginning of a comment.
_LUA = re.compile(
    r"--\[(?P<dashes>=*)\[.*?\](?P=dashes)\]|--[^\n]*"
    r"|\[(?P<level>=*)\[.*?\](?P=level)\]|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"",
    re.DOTALL,
)


class Counted(NamedTuple):
    """The counts of a file. Fields: path: in the checkout; code: lines; names: public ones."""

    path: str
    code: int
    names: int = 0


def python_lines(text: str) -> int:
    """Return how many lines of a Python module hold code."""
    described: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", ())
        # That of a lambda, or of an if within an expression, is no list.
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                described |= set(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - described)


def lua_lines(text: str) -> int:
    """Return how many lines of a Lua script hold code."""

    def without(found: re.Match[str]) -> str:
        said = found[0]
        return "\n" * said.count("\n") if said.startswith("--") else said

    return sum(bool(line.strip()) for line in _LUA.sub(without, text).split("\n"))


def public_names(text: str) -> int:
    """Return how many names a module lists in `__all__`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return len(ast.literal_eval(node.value))
    return 0


def files(root: Path = ROOT) -> Iterator[Counted]:
    """Yield the counts of each module and script that ships."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.*")):
            name = path.relative_to(root).as_posix()
            if path.suffix == ".py":
                text = path.read_text("utf-8")
                yield Counted(name, python_lines(text), public_names(text))
            elif path.suffix == ".lua":
                yield Counted(name, lua_lines(path.read_text("utf-8")))


def totals(counted: list[Counted]) -> dict[str, Any]:
    """Return the totals of all files, and the lines of Python and Lua of each part."""
    python = [each for each in counted if each.path.endswith(".py")]
    lua = [each for each in counted if each.path.endswith(".lua")]
    parts: dict[str, int] = {}
    for each in counted:
        names = each.path.split("/")
        part = "/".join(names[: 2 if names[0] == "workstealing" and len(names) > 2 else 1])
        parts[part] = parts.get(part, 0) + each.code
    return {
        "code lines of Python": sum(each.code for each in python),
        "code lines of Lua": sum(each.code for each in lua),
        "modules": len(python),
        "scripts": len(lua),
        "public names": sum(each.names for each in python),
        "modules with public names": sum(each.names > 0 for each in python),
        "parts": dict(sorted(parts.items(), key=lambda each: -each[1])),
    }


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AsWritten)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--files", action="store_true", help="print each file, too")
    options = parser.parse_args()
    counted = list(files())
    found = totals(counted)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    parts: Mapping[str, int] = found.pop("parts")
    for name, number in [*found.items(), ("", 0), *parts.items()]:
        print(f"{name:<30}{number:>8,}" if name else "")
    if options.files:
        print()
        for each in sorted(counted, key=lambda each: -each.code):
            print(f"{each.path:<64}{each.code:>6,}")


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


if __name__ == "__main__":
    main()
