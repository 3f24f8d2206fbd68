"""Draw sentences to be read by somebody who knows nothing else: ``python scripts/reading.py``.

It prints 100 sentences of docstrings, docs and headers of scripts, each with the heading that it
stands below. The commit's hash decides which: nobody chooses them. One reader restates each
sentence; another one, who reads the code, judges whether it was understood. docs/reading/ keeps
the drawings, the restatements and the verdicts.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAWN = 100
_FEWEST_WORDS = 6
_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"'(])")
_BLOCK = re.compile(r"```.*?```", re.DOTALL)


def sentences() -> Iterator[tuple[str, str]]:
    """Yield each sentence behind its heading: a file and a symbol, or a file and its section."""
    for folder in ("workstealing", "jobs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from _of_docstrings(path)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield from _of_prose(path)
    for path in sorted((ROOT / "lua").rglob("*.lua")):
        yield from _of_header(path)


def _of_docstrings(path: Path) -> Iterator[tuple[str, str]]:
    place = path.relative_to(ROOT).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = getattr(node, "name", "the module")
            for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                if not re.match(r"\s*[-|]|    |```|Arguments:", paragraph):
                    yield from _cut(f"{place}: {name}", paragraph)


def _of_prose(path: Path) -> Iterator[tuple[str, str]]:
    place, section = path.relative_to(ROOT).as_posix(), "the beginning"
    for paragraph in _BLOCK.sub("", path.read_text()).split("\n\n"):
        if paragraph.startswith("#"):
            section = paragraph.splitlines()[0].strip("# ")
        elif not re.match(r"[|!<]|    |\d+\. |[-*] ", paragraph):
            yield from _cut(f"{place}: {section}", paragraph)


def _of_header(path: Path) -> Iterator[tuple[str, str]]:
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("--"):
            break
        if not line.startswith("--@"):
            lines.append(line.removeprefix("--").strip())
    yield from _cut(f"{path.relative_to(ROOT).as_posix()}: the header", " ".join(lines))


def _cut(place: str, paragraph: str) -> Iterator[tuple[str, str]]:
    for sentence in _END.split(" ".join(paragraph.split())):
        if len(sentence.split()) >= _FEWEST_WORDS and sentence.endswith((".", "!", "?")):
            yield place, sentence


def drawn(commit: str, number: int = DRAWN) -> list[tuple[str, str]]:
    """Return so many sentences, each drawn once, as the commit's hash decides."""
    return random.Random(commit).sample(sorted(set(sentences())), number)


def main() -> None:
    """Print a drawing as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=DRAWN, help="how many sentences")
    options = parser.parse_args()
    asked = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    print(f"# Drawing by {commit[:12]}\n")
    for turn, (place, sentence) in enumerate(drawn(commit, options.number), 1):
        print(f"{turn}. ({place}) {sentence}")


if __name__ == "__main__":
    main()
