"""Which queue a command is about: its name, its kind, and the settings that it is opened with."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Protocol

from workstealing.cli.clients import add_url_option, client_at
from workstealing.cli.output import printable
from workstealing.cli.values import at_least, duration
from workstealing.config import URL_VARIABLES, redis_url
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.cli.queue_picture import Picture

SHUFFLE, TIME = "shuffle", "time"
KINDS = {SHUFFLE: "ShuffleQueue", TIME: "TimeShardQueue"}
_OPTIONS = {
    SHUFFLE: (
        "tenant",
        "deadline",
        "fields",
        "group",
        "streams",
        "streams_per_tenant",
        "namespace",
    ),
    TIME: ("due", "lease", "drain_all", "time_shards", "period"),
}


class CommandQueue(Protocol):
    """What the actions do with a queue, of either kind. Errors: of the queue."""

    def put(self, message: bytes) -> dict[str, Any]:
        """Put a message in; return what is printed of it, "id" among it."""
        ...

    def take(self, seconds: float) -> Any:
        """Return a message, or None when none has come for so long."""
        ...

    def shown(self, taken: Any) -> dict[str, Any]:
        """Return what is printed of a message that was taken, as plain data."""
        ...

    def line(self, shown: dict[str, Any]) -> str:
        """Return the same as a line for people."""
        ...

    def ack(self, taken: Any) -> None:
        """Say that a message is done."""
        ...

    def give_back(self, taken: Any, delay: float | None) -> None:
        """Say that a message failed; it comes again, after so many seconds."""
        ...

    def look(self) -> dict[str, Any]:
        """Return what the queue holds now, as plain data."""
        ...

    def pictures(self, seen: dict[str, Any]) -> list[Picture]:
        """Return what a look has seen, as tables."""
        ...


def add_queue_options(parser: argparse.ArgumentParser) -> None:
    """Add the queue's name, --kind and --url to an action's options."""
    parser.add_argument("name", metavar="NAME", help="the queue's name")
    parser.add_argument(
        "--kind",
        choices=tuple(KINDS),
        help="shuffle: a ShuffleQueue; time: a TimeShardQueue (default: of what is there)",
    )
    add_url_option(parser, "the environment's")


def add_setting_options(parser: argparse.ArgumentParser, *, is_producing: bool = False) -> None:
    """Add the settings that an application makes its queue with.

    Arguments: parser; is_producing: whether also those that only a producer needs.
    """
    settings = parser.add_argument_group("settings of the queue, as the application gives them")
    if is_producing:
        settings.add_argument(
            "--streams", type=at_least(1, "streams"), metavar="N", help="ShuffleQueue (default: 64)"
        )
        settings.add_argument(
            "--streams-per-tenant",
            type=at_least(1, "streams"),
            metavar="N",
            help="ShuffleQueue (default: 4)",
        )
    settings.add_argument(
        "--ttl",
        type=duration,
        metavar="S",
        help="ShuffleQueue (default: 7d; never shortens what the application said)",
    )
    settings.add_argument("--namespace", metavar="NAME", help="ShuffleQueue (default: its own)")
    settings.add_argument(
        "--time-shards",
        type=at_least(1, "time shards"),
        metavar="N",
        help="TimeShardQueue (default: what is there, else 4)",
    )
    settings.add_argument(
        "--period",
        type=duration,
        metavar="S",
        help="TimeShardQueue (default: what is there, else 60 s)",
    )


def opened(options: argparse.Namespace) -> CommandQueue:
    """Open the queue that the options name.

    Returns: it, of the kind that was named or else is there. Errors: ConfigurationError for options
    of the other kind, a queue that is not there and whose kind is not named, and a Redis that
    cannot be used. Three round trips at most.
    """
    name = os.fsencode(options.name)
    _refuse_misfits(options, options.kind)
    if options.url is None:
        _require_environment()
    client = client_at(options.url)
    kind = options.kind or _kind_of(client, name)
    _refuse_misfits(options, kind)
    if kind == SHUFFLE:
        from workstealing.cli.queue_shuffle import ShuffleSide

        return ShuffleSide(client, name, options)
    from workstealing.cli.queue_time import TimeSide

    return TimeSide(client, name, options)


def _require_environment() -> None:
    try:
        redis_url()
    except ConfigurationError:
        raise ConfigurationError(
            f"no Redis was named: give --url, or set {' or '.join(URL_VARIABLES)}"
        ) from None


def _kind_of(client: Any, name: bytes) -> str:
    from workstealing.structures.shuffle_queue.names import QueueNames
    from workstealing.structures.time_shard_queue.names import layout_key

    names = QueueNames(name)
    # What a plain stream holds, a ShuffleQueue of its name reads too.
    is_shuffle = bool(client.exists(names.meta)) or client.type(names.legacy) in (
        b"stream",
        "stream",
    )
    is_time = bool(client.exists(layout_key(name)))
    text = printable(names.text)
    if is_shuffle and is_time:
        raise ConfigurationError(
            f"there is a ShuffleQueue and a TimeShardQueue {text!r}: say which by --kind"
        )
    if not is_shuffle and not is_time:
        raise ConfigurationError(
            f"there is no queue {text!r} yet: say by --kind shuffle or --kind time what it will be"
        )
    return SHUFFLE if is_shuffle else TIME


def _refuse_misfits(options: argparse.Namespace, kind: str | None) -> None:
    for other, names in _OPTIONS.items():
        given = [name for name in names if getattr(options, name, None) is not None]
        if kind not in (None, other) and given:
            option = f"--{given[0].replace('_', '-')}"
            raise ConfigurationError(
                f"{option} is for a {KINDS[other]}, and this is a {KINDS[kind]}: leave it out"
            )
