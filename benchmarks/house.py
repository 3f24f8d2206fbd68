"""How far a newcomer walks through the house: ``python benchmarks/house.py [--files]``.

One field is written with a time to live, and a recruiter has it collected once it is over. The
script follows both calls and counts the files whose code takes part, and the deepest stack of our
own frames. It also counts the package: modules, scripts and their lines. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import redis
from servers import newest_redis

import workstealing
from workstealing import Outcome, Recruiter
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

# The installed package: its folders `jobs` and `lua` may stand outside of it, in the checkout.
PACKAGE = Path(workstealing.__file__).resolve().parent
JOBS = Path(sys.modules["workstealing.jobs"].__file__ or "").resolve().parent
LUA = next(each for each in (PACKAGE / "lua", PACKAGE.parent / "lua") if each.is_dir())


class Walk:
    """What took part in a call: Python files of ours, the depth of their frames, Lua files."""

    def __init__(self) -> None:
        self.python: set[str] = set()
        self.frames = 0
        self.deepest: list[str] = []
        self.lua: set[str] = set()

    @contextmanager
    def following(self) -> Iterator[None]:
        """Follow each Python call that this thread makes meanwhile."""
        sys.setprofile(self._on_call)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_call(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or _ours(frame) is None:
            return
        stack: list[str] = []
        here: FrameType | None = frame
        while here is not None:
            file = _ours(here)
            if file is not None:
                stack.append(f"{file}: {here.f_code.co_qualname}")
            here = here.f_back
        self.python.add(stack[0].partition(":")[0])
        if len(stack) > self.frames:
            self.frames, self.deepest = len(stack), stack[::-1]


def _ours(frame: FrameType) -> str | None:
    """Return the name of the frame's file if it is one of the package's."""
    path = Path(frame.f_code.co_filename)
    for folder in (PACKAGE, JOBS):
        if path.is_relative_to(folder):
            return path.relative_to(folder.parent).as_posix()
    return None


@contextmanager
def _scripts_sent(bodies: dict[str, str]) -> Iterator[set[str]]:
    """Note the digests of the scripts that redis-py sends, and the text of each that it loads."""
    sent: set[str] = set()
    packers = [redis.connection.HiredisRespSerializer, redis.connection.PythonRespSerializer]
    packs = [each.pack for each in packers]

    def noting(pack: Callable[..., Any]) -> Callable[..., Any]:
        def packing(self: Any, *args: Any) -> Any:
            words = [each.decode() if isinstance(each, bytes) else str(each) for each in args[:3]]
            match [words[0].upper(), *words[1:]]:
                case ["EVALSHA", sha, *_]:
                    sent.add(sha)
                case ["EVAL", body, *_] | ["SCRIPT", _, body]:
                    sha = hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest()
                    bodies[sha] = body
                    sent.add(sha)
            return pack(self, *args)

        return packing

    for packer, pack in zip(packers, packs, strict=True):
        packer.pack = noting(pack)  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        for packer, pack in zip(packers, packs, strict=True):
            packer.pack = pack  # type: ignore[method-assign]


def _lua_files(bodies: list[str]) -> set[str]:
    """Return the files whose code stands in one of the scripts' texts, whole or in part.

    The loader leaves comments out, and perhaps functions. A line that stands in one file alone
    tells that file.
    """
    code = {path: _code(path.read_text()) for path in LUA.rglob("*.lua")}
    standing = Counter(line for lines in code.values() for line in set(lines))
    found = set()
    for body in map(_code, bodies):
        text, telling = "\n".join(body), {line for line in body if standing[line] == 1}
        for path, lines in code.items():
            if telling.intersection(lines) or (lines and "\n".join(lines) in text):
                found.add(path.relative_to(LUA).as_posix())
    return found


def _code(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("--")]


def walk() -> Walk:
    """Follow one field from its writing to its collection; both have run once before."""
    with newest_redis() as server:
        hashes = VolatileHashes(server.client(), namespace="house", backend="emulated")
        # Every caller is recruited.
        recruiter = Recruiter(seconds=5.0, random=lambda: 0.0)
        recruiter.install(HashFieldExpiry(hashes), rate=0.003)

        def write() -> None:
            hashes.hsetex("item:17", "draft", "text", px=1)

        def collect() -> None:
            if recruiter.enlist() is not Outcome.WORKED:
                raise SystemExit("the recruit has not collected the field")

        walked = Walk()
        bodies: dict[str, str] = {}
        steps: tuple[Callable[[], None], ...] = (write, collect)
        # A first pass connects, probes and loads scripts, once in a process.
        with _scripts_sent(bodies):
            for step in steps:
                step()
                time.sleep(0.01)
        for step in steps:
            with _scripts_sent(bodies) as sent, walked.following():
                step()
            walked.lua |= _lua_files([bodies[sha] for sha in sent])
            time.sleep(0.01)
    return walked


def package() -> dict[str, int]:
    """Return how many modules and scripts the package has, and their lines."""
    python = {path.resolve() for folder in (PACKAGE, JOBS) for path in folder.rglob("*.py")}
    lua = {path.resolve() for path in LUA.rglob("*.lua")}
    return {
        "modules": len(python),
        "lines of Python": sum(len(path.read_text().splitlines()) for path in python),
        "scripts": len(lua),
        "lines of Lua": sum(len(path.read_text().splitlines()) for path in lua),
    }


def main() -> None:
    """Print the counts, as a table or as JSON, and the files if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files and the frames too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    walked = walk()
    counts = {
        **package(),
        "Python files of one field's life": len(walked.python),
        "Lua files of one field's life": len(walked.lua),
        "frames of ours at the deepest": walked.frames,
    }
    if options.json:
        print(json.dumps(counts, indent=2))
    else:
        for name, count in counts.items():
            print(f"{name:<34}{count:>8,}")
    if options.files:
        names = {"Python": sorted(walked.python), "Lua": sorted(walked.lua)}
        for title, some in {**names, "Frames": walked.deepest}.items():
            print(f"\n{title}:", *some, sep="\n  ")


if __name__ == "__main__":
    main()
