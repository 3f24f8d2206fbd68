"""The scripts of the ``lua`` folder, joined with the functions that they use.

``lua/<structure>/<operation>.lua`` is the script `<structure>/<operation>`. A line ``--@include
library`` names a library: a file of the same folder, or of ``lua/shared``, whose first line is
``--@library``. A library defines local functions and values, each at the beginning of a line. A
script receives only the definitions that it uses, because the server makes every function anew at
each call. An indented include, of a script or of a library's function, makes functions for its
block alone, so a path that is seldom taken costs the others nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from workstealing.errors import ScriptError

_INCLUDE = re.compile(r"^--@include[ \t]+(\w+)[ \t]*$", re.MULTILINE)
_INDENTED = re.compile(r"^[ \t]+--@include[ \t]+(\w+)[ \t]*$", re.MULTILINE)
# An include with its block: the following lines that are indented as much.
_BLOCK = re.compile(r"^([ \t]+)--@include .*\n((?:\1.*\n|[ \t]*\n)*)", re.MULTILINE)
LIBRARY = "--@library"
_SHARED = "shared"
# A definition at the beginning of a library's line, and the names that it makes.
_DEFINITION = re.compile(r"(?:local function|function) (\w+)|local ([\w ,]+)|(\w+) =")
# How a line goes on with the definition above it, if it is not indented.
_GOES_ON = re.compile(r"[ \t]|end\b|[})\]]|else")
_WORD = re.compile(r"[A-Za-z_]\w*")
# Constants with capital names and numbers as values, one or some in a line.
_NUMBER = r"-?\d+"
_CONSTANTS = re.compile(
    rf"^local ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = ({_NUMBER}(?:, {_NUMBER})*)\n", re.MULTILINE
)
_QUOTED_OR_NAME = re.compile(r"""('[^'\n]*'|"[^"\n]*"|--[^\n]*)|\b([A-Z][A-Z0-9_]*)\b""")
_SHIFT = "CLOCK_SHIFT_MS = 0"
# A script gives the bare error back, as the command itself would. A server before Redis 7 wraps it,
# so no client would know READONLY or OOM as such: neither its sentinels nor its retries nor its
# classes. A later server adds the script's digest and line. An error about the type of a user's key
# is always a script's answer; so one that is raised is about a key of ours.
_ANSWER = """local said = answer
if type(answer) == 'table' then
said = answer.err
elseif done then
return answer
end
if type(said) == 'string' then
said = string.match(said, '^[@=][^:]*: *%-?%d+: %-(%u.*)$') or said
if not done and string.match(said, '^WRONGTYPE ') then
said = 'WSLAYOUT one of the keys ' .. table.concat(KEYS, ' ', 1, math.min(#KEYS, 5))
.. ' holds another type than it should'
end
if string.match(said, '^%u[%u%d]+ ') then
return {err = (string.gsub(said, '%s+', ' '))}
end
end
if done then
return answer
end
"""


class Script:
    """One Lua script, ready to run: its text, and the digest by which the server knows it.

    Arguments:
        name: its file in ``lua/`` without the ending.
        clock_shift_ms: for tests alone, by how many milliseconds its clock is ahead of the
            server's.
    """

    __slots__ = ("body", "name", "sha")

    def __init__(self, name: str, clock_shift_ms: int = 0) -> None:
        self.name = name
        text = _join(name)
        if clock_shift_ms:
            text = text.replace(_SHIFT, f"CLOCK_SHIFT_MS = {clock_shift_ms:d}")
        self.body = framed(_with_numbers(text))
        self.sha = hashlib.sha1(self.body.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


def framed(text: str) -> str:
    """Return a script's text in the frame that gives its errors back bare.

    A script that answers several calls gives each its reply by ``reply_of(keys, pcall(...))``. That
    never raises, because the calls before have been done.
    """
    own = ""
    if "reply_of(" in text:
        other = "return {err = 'ERR ' .. string.gsub(tostring(answer), '%s+', ' ')}\n"
        own = f"local function reply_of(KEYS, done, answer)\n{_ANSWER}{other}end\n"
    return f"{own}local done, answer = pcall(function()\n{text}end)\n{_ANSWER}error(answer, 0)\n"


def load(name: str, clock_shift_ms: int = 0) -> Script:
    """Return the script of that name; the same object for the same arguments."""
    # `cache` tells an argument that is left out from the same value that is given.
    return _loaded(name, clock_shift_ms)


@cache
def _loaded(name: str, clock_shift_ms: int) -> Script:
    return Script(name, clock_shift_ms)


def load_all(family: str, clock_shift_ms: int = 0) -> None:
    """Load every script of a structure, so that no first use waits for the files.

    Arguments:
        family: a folder's name with a slash at its end, or the beginning of the scripts' names.
        clock_shift_ms: for tests.
    """
    folder, slash, start = family.rpartition("/")
    for entry in files("workstealing.lua").joinpath(folder).iterdir():
        name, dot, kind = entry.name.partition(".")
        if not dot or kind != "lua" or not name.startswith(start):
            continue
        if not entry.read_text(encoding="utf-8").startswith(LIBRARY):
            load(f"{folder}{slash}{name}", clock_shift_ms)


class _Definition(NamedTuple):
    """A part of a library: the names that it makes, the words outside its blocks, and its text."""

    names: frozenset[str]
    words: frozenset[str]
    text: str


@cache
def _read(path: str) -> str | None:
    source = files("workstealing.lua").joinpath(f"{path}.lua")
    try:
        return source.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _library(folder: str, name: str) -> str:
    """Return the text of a library that a script of a folder includes."""
    for path in (f"{folder}{name}", f"{_SHARED}/{name}"):
        text = _read(path)
        if text is not None and text.startswith(LIBRARY):
            return text
    raise ScriptError(f"there is no Lua include named {name!r}")


def _join(name: str) -> str:
    script = _read(name)
    if script is None or script.startswith(LIBRARY):
        raise ScriptError(f"there is no Lua script named {name!r}")
    folder = name[: name.rfind("/") + 1]
    definitions: list[_Definition] = []
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
            library = _library(folder, wanted)
            own = expand(library, (*path, wanted))
            # They stand behind their own includes, which have been added by now.
            definitions.extend(_definitions(wanted, own))
            return ""

        rest = _INCLUDE.sub(part, text)
        for wanted in _INDENTED.findall(rest):
            # A function's block may name its own library, for the functions before it.
            if wanted != path[-1]:
                expand(f"--@include {wanted}", path)
        return rest

    text = expand(script, (name.rpartition("/")[2],))
    return _with_blocks(definitions, text, ())


def _with_blocks(definitions: list[_Definition], text: str, known: Sequence[str]) -> str:
    """Return a text behind the definitions that it uses, and each block behind its own.

    Arguments:
        definitions: of all libraries.
        text: of a script, a definition or a block.
        known: the texts of definitions that stand before it already.
    """
    head = [each for each in _used(definitions, _outside_blocks(text)) if each not in known]

    def with_own(part: str, seen: Sequence[str]) -> str:
        return _stripped(_BLOCK.sub(lambda block: _with_blocks(definitions, block[2], seen), part))

    # A function sees itself and what stands before it.
    own = [with_own(each, (*known, *head[: place + 1])) for place, each in enumerate(head)]
    return "".join([*own, with_own(text, (*known, *head))])


def _outside_blocks(text: str) -> str:
    """Return a text without its blocks, which name their definitions themselves."""
    return _stripped(_BLOCK.sub("", text))


def _used(definitions: list[_Definition], text: str) -> list[str]:
    """Return the definitions that a script uses, directly or through another definition."""
    wanted = set(_WORD.findall(text))
    used: set[int] = set()
    while True:
        found = {
            number
            for number, each in enumerate(definitions)
            if number not in used and not wanted.isdisjoint(each.names)
        }
        if not found:
            return [definitions[number].text for number in sorted(used)]
        used |= found
        for number in found:
            wanted |= definitions[number].words


def _definitions(library: str, text: str) -> list[_Definition]:
    """Split a library at the lines that begin with a definition."""
    parts: list[list[str]] = []
    for line in text.splitlines():
        is_comment = line.lstrip().startswith("--") and not _INDENTED.match(line)
        if not line.strip() or is_comment:
            continue
        if _DEFINITION.match(line):
            parts.append([])
        elif not parts:
            raise ScriptError(f"the Lua library {library!r} begins with no definition: {line}")
        elif not _GOES_ON.match(line):
            # It would be left out with the definition above it, which it may have no part in.
            raise ScriptError(f"the Lua library {library!r} has a line of no definition: {line}")
        parts[-1].append(line)
    found = []
    for part in parts:
        match = _DEFINITION.match(part[0])
        assert match is not None
        joined = "".join(f"{line}\n" for line in part)
        names = frozenset(_WORD.findall(next(filter(None, match.groups()))))
        words = frozenset(_WORD.findall(_outside_blocks(joined)))
        found.append(_Definition(names, words, joined))
    return found


def _with_numbers(text: str) -> str:
    """Write the numbers of constants in their places.

    A function that names a constant would be given it anew at each call of the script, by a search
    among all that are open: a tenth of a microsecond for each name in each function.
    """
    numbers: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(text):
        numbers.update(zip(names.split(", "), values.split(", "), strict=False))

    def written(match: re.Match[str]) -> str:
        return match[1] or numbers.get(match[2], match[2])

    return _QUOTED_OR_NAME.sub(written, _CONSTANTS.sub("", text))


def _stripped(text: str) -> str:
    """Drop the parts that only readers need, because the server keeps and hashes the text."""
    lines = (line.strip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("--"))
