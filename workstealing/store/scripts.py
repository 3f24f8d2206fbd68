"""The scripts of the ``lua`` folder, joined with what they include.

A script names a shared part by a line ``--@include name``; each part is taken in once, where it is
first named, from ``lua/include/name.lua``.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files

_INCLUDE = re.compile(r"^--@include[ \t]+(\w+)[ \t]*$", re.MULTILINE)
_SHIFT = "CLOCK_SHIFT_MS = 0"


class ScriptError(Exception):
    """A script of this package is broken: a missing or circular include."""


class Script:
    """One Lua script, ready to be run: its text and the digest that the server knows it by.

    Arguments: the script's name (its file in ``lua/`` without the ending) and, for tests alone,
    how many milliseconds its clock is ahead of the server's.
    """

    __slots__ = ("body", "name", "sha")

    def __init__(self, name: str, clock_shift_ms: int = 0) -> None:
        self.name = name
        text = _join(name)
        if clock_shift_ms:
            text = text.replace(_SHIFT, f"CLOCK_SHIFT_MS = {clock_shift_ms:d}")
        self.body = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


@cache
def load(name: str, clock_shift_ms: int = 0) -> Script:
    """Return the script of that name; the same object for the same arguments."""
    return Script(name, clock_shift_ms)


def load_all(family: str, clock_shift_ms: int = 0) -> None:
    """Load every script whose name begins so, before a first use has to wait for the files."""
    for entry in files("workstealing.lua").iterdir():
        name, dot, kind = entry.name.partition(".")
        if dot and kind == "lua" and name.startswith(family):
            load(name, clock_shift_ms)


@cache
def _read(name: str, *, include: bool) -> str:
    folder = files("workstealing.lua.include" if include else "workstealing.lua")
    source = folder / f"{name}.lua"
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError:
        kind = "include" if include else "script"
        raise ScriptError(f"there is no Lua {kind} named {name!r}") from None


def _join(name: str) -> str:
    taken: set[str] = set()

    def expand(text: str, path: tuple[str, ...]) -> str:
        def part(match: re.Match[str]) -> str:
            wanted = match.group(1)
            if wanted in path:
                raise ScriptError(
                    f"Lua includes go round in a circle: {' -> '.join((*path, wanted))}"
                )
            if wanted in taken:
                return ""
            taken.add(wanted)
            return expand(_read(wanted, include=True), (*path, wanted))

        return _INCLUDE.sub(part, text)

    joined = expand(_read(name, include=False), (name,))
    # The server keeps and hashes the text: leave out what only readers need.
    lines = (line.strip() for line in joined.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")) + "\n"
