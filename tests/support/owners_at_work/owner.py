"""What a program must tell so that its processes can be killed at work, and its garbage judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import redis

from support.killed_journal import Work

DAY = 86_400.0
"""The gap between two sightings: it passes when all processes have gone on, not by the clock."""


class Owner:
    """A program that leaves garbage.

    Arguments:
        home: its URL.
        planted: go by an unsafe rule.

    Its modules are imported before the first fork, and its processes connect after it.
    """

    name: ClassVar[str]
    processes: ClassVar[Mapping[str, int]] = {"works": 3}
    """How many processes of each role are at work at once."""
    endless: ClassVar[frozenset[str]] = frozenset()
    """The roles whose first operation lasts as long as the process."""
    pace: ClassVar[float] = 1.0
    """By how much longer a process lives than is asked for, so that it gets to work."""
    of_lives: ClassVar[frozenset[str]] = frozenset()
    """The jobs whose gap is the longest life of a process; that of others is an operation."""

    def __init__(self, home: str, *, planted: bool = False) -> None:
        self.home, self.planted = home, planted

    def connected(self) -> Any:
        """Return a client of this process' own."""
        return redis.Redis.from_url(self.home, socket_timeout=60.0, socket_connect_timeout=60.0)

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Connect, in a child; return what does one operation, begun and ended."""
        raise NotImplementedError

    def jobs(self, client: Any) -> list[Any]:
        """Return the jobs that collect its garbage."""
        raise NotImplementedError

    def begin(self, client: Any) -> None:
        """Prepare what its processes need, once and before them."""

    def passes(self, client: Any, alive: set[int]) -> None:
        """Let end what time alone would end of processes that are dead.

        Arguments:
            alive: lives.
        """

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the live items that the owner's own reader does not find. Arguments: notes too."""
        raise NotImplementedError

    def broken(self, client: Any) -> list[str]:
        """Return what is lost by the owner's data alone, whatever the journal says."""
        return []

    def finish(self, client: Any, work: Work) -> None:
        """Do what is left to do when all processes are dead."""

    def left(self, client: Any) -> list[str]:
        """Return the garbage that is there, by a look of its own, which knows the layout."""
        raise NotImplementedError
