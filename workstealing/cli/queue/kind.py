"""A queue of some kind as the tools use it, and the messages that go through it.

To add a kind, write a class below `OpenQueue`, and name it in `opening.KINDS`.
"""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from redis.exceptions import ResponseError

from workstealing.cli.clients import FAULTS
from workstealing.cli.output import Picture
from workstealing.errors import ConfigurationError
from workstealing.recruiting import Job
from workstealing.store.sending import nothing_was_done
from workstealing.structures.layout import as_text

MOST_MESSAGES = 2000
"""How many messages a look reads to tell the tenants apart: it may come every second."""

LISTED = 5
"""How many of the dead or overdue messages a look lists, the oldest first."""


LEASE = 60.0
"""Seconds, where no option says otherwise."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A message on its way into a queue.

    Fields: body; tenant; priority: 0 and up, the higher is taken first; None is 0; due_in: seconds
    from now. A kind without tenants, priorities or due times gets none.
    """

    body: bytes
    tenant: str | None = None
    priority: int | None = None
    due_in: float = 0.0


@dataclass(frozen=True, slots=True)
class InHand:
    """A message that a consumer has.

    Fields: id; body: for people; tenant: None for a kind without; attempts: how often it has been
    delivered; waited: seconds since it could be taken; own: the queue's own object, to settle it.
    """

    id: str
    body: str
    tenant: str | None
    attempts: int
    waited: float
    own: Any


def attempts_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the queue's setting that `max_attempts` of a verb's options names, if they have it."""
    given = getattr(options, "max_attempts", None)
    return {} if given is None else {"max_attempts": given}


def named_namespace(client: Any, meta: bytes, default: str) -> str:
    """Return the namespace that a queue names, or the default. One round trip.

    Of what is no queue of ours, the queue itself says so when it is used.
    """
    try:
        found = client.hget(meta, "namespace")
    except ResponseError:
        found = None
    return default if found is None else as_text(found)


class OpenQueue(ABC):
    """A queue of one kind, open to be looked at, put into and taken from.

    The errors of its methods are those of the queue.

    Attributes: name: as text; is_new: nothing has been put yet, so nobody knows its settings.
    """

    kind: ClassVar[str]
    """As --kind and JSON have it."""
    called: ClassVar[str]
    """The class that users know."""
    own_options: ClassVar[frozenset[str]]
    """Options of the verbs that not every kind has, as argparse names them."""
    is_on_cassandra: ClassVar[bool] = False
    """Whether `on_cassandra` opens one."""

    name: str
    is_new: bool = False
    faults: tuple[type[Exception], ...] = FAULTS
    """The errors by which the queue's database says that it cannot be asked."""
    _queue: Any

    @classmethod
    @abstractmethod
    def is_there(cls, client: Any, name: bytes) -> bool:
        """Say whether a Redis has such a queue. At most two round trips."""

    @classmethod
    @abstractmethod
    def on_redis(cls, client: Any, name: bytes, options: argparse.Namespace) -> Self:
        """Open a queue of a Redis, which need not be there; write nothing.

        Raises: ConfigurationError for options that do not fit it; LayoutError. At most one round
        trip.
        """

    @classmethod
    def on_cassandra(cls, store: Any, name: bytes, options: argparse.Namespace) -> Self:
        """Open a queue of a table, if the kind can be there; see `on_redis`."""
        raise NotImplementedError

    @property
    def own(self) -> Any:
        """The queue itself, an object of the class that users know."""
        return self._queue

    @property
    def title(self) -> str:
        """The kind and the name, for people."""
        return f"{self.called} {self.name}"

    def require(self) -> None:
        """See that the queue has its settings. Raises: ConfigurationError. No round trip."""
        if self.is_new:
            raise ConfigurationError(
                f"there is no {self.title} yet: check the name, or begin it by `workstealing queue"
                " produce`"
            )

    @abstractmethod
    def look(self) -> dict[str, Any]:
        """Return the state of the queue as plain data."""

    @abstractmethod
    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return a look as tables."""

    @abstractmethod
    def begin(self) -> None:
        """Make the queue ready for messages, as the first one does, or see that it is."""

    @abstractmethod
    def put(self, draft: Draft) -> str:
        """Put a message. Returns: its id."""

    @abstractmethod
    def take(self, seconds: float) -> InHand | None:
        """Take a message, or say that there is none now.

        Arguments:
            seconds: for how long the queue may wait for one, if it can.
        """

    @abstractmethod
    def finish(self, message: InHand) -> bool:
        """Acknowledge a message. Returns: False if that was nothing new to the queue."""

    @abstractmethod
    def give_back(self, message: InHand, seconds: float) -> bool:
        """Give a message back, to be taken again after so many seconds.

        Returns: False if somebody else has it since.
        """

    @property
    @abstractmethod
    def lease(self) -> float:
        """For how many seconds a message in hand is ours alone; inf: for ever."""

    @abstractmethod
    def job(self) -> Job:
        """Return the job that brings back what a dead consumer had. No round trip."""

    @abstractmethod
    def left(self) -> int:
        """Count the messages that a consumer may still be given, sooner or later."""

    def is_certain(self, error: Exception) -> bool:
        """Say whether an error of a call tells that nothing was done; else nobody knows."""
        return nothing_was_done(error)
