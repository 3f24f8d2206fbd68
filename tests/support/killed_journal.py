"""What processes that are killed at any moment were told was done: a file, and shared counters.

A line is written by one write to a file that only grows. So it is there, or is not, whatever kills
its process. An item is live from the line that was written after its owner was told that it is
there, to the line that was written before anything was sent that may end it.
"""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path

CHILDREN = 32
_OPERATIONS, _CHECKED, _REMOVED, _COUNTS = 0, 1, 2, 3


class Journal:
    """The file.

    Arguments:
        path: of a file that is made anew.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._at, self._rest = 0, b""
        self._over: set[str] = set()
        self.items: dict[str, str] = {}
        self.lost: list[str] = []

    def live(self, item: str, note: str = "") -> None:
        """Note that an item is there; a note may say what it holds, or until when it lives."""
        self._write("live", item, note)

    def moves(self, item: str) -> None:
        """Note that an item is about to be changed: nothing is known until it is live again."""
        self._write("moves", item)

    def over(self, item: str) -> None:
        """Note that an item is about to be ended, for good."""
        self._write("over", item)

    def is_lost(self, what: str) -> None:
        """Note that its owner has missed something."""
        self._write("lost", what)

    def read_on(self) -> None:
        """Read what has been written since the last time."""
        while found := os.pread(self._fd, 1 << 20, self._at):
            self._at += len(found)
            *lines, self._rest = (self._rest + found).split(b"\n")
            for each in lines:
                self._take(*each.decode().split("\t"))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _take(self, kind: str, item: str, note: str) -> None:
        if kind == "lost":
            self.lost.append(item)
        elif kind == "live" and item not in self._over:
            self.items[item] = note
        else:
            # What another process has ended may be called live by its maker a moment later.
            self.items.pop(item, None)
            if kind == "over":
                self._over.add(item)

    def _write(self, kind: str, item: str, note: str = "") -> None:
        os.write(self._fd, f"{kind}\t{item}\t{note}\n".encode())


class Counts:
    """Counters of each child, in memory that it shares with its parent."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 8 * _COUNTS * CHILDREN)).cast("Q")

    def of(self, slot: int) -> tuple[int, int, int]:
        """Return the operations, the checks and the removals of a child."""
        at = _COUNTS * slot
        return self._cells[at], self._cells[at + 1], self._cells[at + 2]

    def clear(self, slot: int) -> None:
        """Begin anew, for another child."""
        for number in range(_COUNTS):
            self._cells[_COUNTS * slot + number] = 0

    def add(self, slot: int, which: int, number: int) -> None:
        """Count further ones."""
        self._cells[_COUNTS * slot + which] += number


class Work:
    """What a child is given.

    Arguments:
        slot: its counters.
        life: its number.
    """

    def __init__(self, journal: Journal, counts: Counts, slot: int, life: int) -> None:
        self.journal, self.life = journal, life
        self.draw = random.Random(life)
        self._counts, self._slot = counts, slot
        self._made = 0

    def name(self) -> str:
        """Return a name that no other process has ever used."""
        self._made += 1
        return f"{self.life}-{self._made}"

    def is_there(self, found: object, what: str) -> None:
        """Count a look at something that must be there, and note it if it is not."""
        self._counts.add(self._slot, _CHECKED, 1)
        if not found:
            self.journal.is_lost(what)

    def operated(self) -> None:
        """Count an operation that is done; the first one is that the child is at work."""
        self._counts.add(self._slot, _OPERATIONS, 1)

    def removed(self, number: int) -> None:
        """Count removals of a recruit's."""
        self._counts.add(self._slot, _REMOVED, number)
