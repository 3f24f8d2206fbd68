"""Options of sources and sinks: parsed once, on the driver, before any task runs."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.spark.making import DEFAULT_CLIENT, ClientSettings
from workstealing.structures.access import CONNECTION, Access

OF_SPARK = Access(
    keys=("ws:spark:recruits:*",),
    commands=CONNECTION
    | {"MULTI", "EXEC", "HINCRBY", "EXPIRE", "HGETALL"}
    | {"SCAN", "HSCAN", "SSCAN", "ZSCAN", "HMGET", "SMISMEMBER", "ZMSCORE", "ZSCORE"},
    native=frozenset({"HPTTL"}),
)
"""The rights that Spark's tasks need to count, and its sources to read, besides the structures'."""

T = TypeVar("T")

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})
# Spark hands its own options of a streaming query over with ours.
_SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
# Texts that belong into the option ``url`` alone, and may hold a password.
_REDIS_URL = re.compile(r"\s*(rediss?(\+cluster|\+sentinel)?|unix|embedded)://", re.IGNORECASE)

MOST_SECONDS = 60_000_000_000
"""A deadline must stay below 2^46 ms since the epoch, the servers' own limit."""

Position = int | str
"""The number of an entry (negative: counted from the end), an id, or a word such as "latest"."""


@dataclass(frozen=True, slots=True)
class Positions:
    """The position in each log or stream at which a read begins or ends.

    Fields: default; by_name: (name, position) of those that have another one.
    """

    default: Position
    by_name: tuple[tuple[str, Position], ...] = ()

    def of(self, name: str) -> Position:
        """Return the position in a log or stream."""
        return dict(self.by_name).get(name, self.default)


class ParsedOptions:
    """The options of a format, made at the driver; a subclass is picklable and knows its name."""

    __slots__ = ()
    format: ClassVar[str]

    def wrong(self, problem: str) -> ConfigurationError:
        """Return the error for a problem."""
        return ConfigurationError(f"format {self.format!r}: {problem}")

    def refuse(self, options: Mapping[str, object], why: str) -> None:
        """Refuse options that do not go with a use.

        Arguments:
            why: their use, for the error.

        Raises: ConfigurationError if one of the options is given.
        """
        for name, value in options.items():
            if value is not None:
                raise self.wrong(f"the option {name!r} is for {why}: leave it out")


class OptionReader:
    """Takes options out of those that Spark hands over; options that nobody takes are unknown.

    Arguments:
        format: the source's name, for errors.
        options: as Spark gives them, whose names differ in case only by chance.

    Values of options never appear in errors unless they are taken by `number`, `choice` or
    `boolean`. Raises, in every method that takes an option: ConfigurationError for one that is
    missing or wrong.
    """

    def __init__(self, format: str, options: Mapping[str, str]) -> None:  # noqa: A002 - Spark's word
        self._prefix = f"format {format!r}: "
        self.format = format
        known = {name.lower(): value for name, value in options.items()}
        self._options = {name: known[name] for name in known if name not in _SPARKS_OWN}
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option's text, or the default; an empty one is an error.

        An option that is not ``url`` and holds a URL of Redis's is an error, too: the URL may hold
        a password.
        """
        self._known.append(name)
        value = self._options.pop(name.lower(), None)
        if value is None:
            return default
        if not value:
            raise self.wrong(f"the option {name!r} is empty: give it a value, or leave it out")
        if name != "url" and _REDIS_URL.match(value):
            raise self.wrong(f"the option {name!r} holds a URL: give that as the option 'url'")
        return value

    def required(self, name: str, meaning: str) -> str:
        """Return an option's text; the error for a missing option says what the option means."""
        value = self.text(name)
        if value is None:
            raise self.wrong(f"the option {name!r} is missing: give {meaning}")
        return value

    def number(self, name: str, default: int, least: int = 1, most: int | None = None) -> int:
        """Return an option as a whole number within bounds."""
        value = self.text(name)
        if value is None:
            return default
        bounds = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise self.wrong(f"the option {name!r} is {value!r}: give a whole number, {bounds}")
        return number

    def seconds(self, name: str) -> float | None:
        """Return an option as a number of seconds above 0, with or without a fraction, or None."""
        value = self.text(name)
        if value is None:
            return None
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds > 0):
            raise self.wrong(f"the option {name!r} is {value!r}: give a number of seconds above 0")
        if seconds > MOST_SECONDS:
            raise self.wrong(f"the option {name!r} is above {MOST_SECONDS:,} seconds")
        return seconds

    def positions(
        self,
        name: str,
        is_position: Callable[[object], bool],
        meaning: str,
        known: tuple[str, Sequence[str]],
        *,
        default: Position,
        is_common: Callable[[object], bool] | None = None,
    ) -> Positions | None:
        """Return an option's position for all, or by name as JSON; None if it is not given.

        Arguments:
            is_position: says whether something is one.
            meaning: of the option, for the error.
            known: the option that has the names, and these.
            default: of names without one.
            is_common: says whether something is one for all.
        """
        text = self.text(name)
        if text is None:
            return None
        found: Any = text
        with suppress(ValueError):
            found = json.loads(text)
        by_name = found if isinstance(found, dict) else None
        is_right = is_position if by_name is not None else is_common or is_position
        if not all(map(is_right, [found] if by_name is None else by_name.values())):
            raise self.wrong(f"the option {name!r} is {text!r}: give {meaning}")
        if by_name is None:
            return Positions(found)
        option, names = known
        if strangers := sorted(set(by_name) - set(names)):
            raise self.wrong(
                f"the option {name!r} names {strangers[0]!r}, which the option {option!r} does not"
            )
        return Positions(default, tuple(sorted(by_name.items())))

    def words(self, name: str) -> tuple[str, ...]:
        """Return an option as words that commas part, () without it."""
        value = self.text(name) or ""
        return tuple(word.strip() for word in value.split(",") if word.strip())

    def names(self, name: str, of: str) -> list[str] | None:
        """Return an option as names: commas part them, or it is a list as JSON or Python writes it.

        Arguments:
            of: what they are names of, for errors.

        Returns: None without the option. Raises: ConfigurationError for anything else, and for a
        name that is there twice.
        """
        text = self.text(name)
        if text is None:
            return None
        names: Any = None
        if text.lstrip().startswith("["):
            # The second one is what PySpark makes of a Python list.
            for read in (json.loads, ast.literal_eval):
                with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                    names = read(text.strip())
                    break
        else:
            names = [each.strip() for each in text.split(",")]
        if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
            raise self.wrong(
                f"the option {name!r} holds no names of {of}s: give them with commas in between, or"
                ' as a list, ["a", "b"]'
            )
        seen: set[str] = set()
        for each in names:
            if each in seen:
                raise self.wrong(f"the {of} {each!r} is named twice in the option {name!r}")
            seen.add(each)
        return names

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of several words; the first one is the default."""
        return self.choice_or_none(name, choices) or choices[0]

    def choice_or_none(self, name: str, choices: tuple[str, ...]) -> str | None:
        """Return one of several words, or None where none was given."""
        value = self.text(name)
        if value is not None and value not in choices:
            raise self.wrong(f"the option {name!r} is {value!r}: give {' or '.join(choices)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Return an option as true or false."""
        found = self.boolean_or_none(name)
        return default if found is None else found

    def boolean_or_none(self, name: str) -> bool | None:
        """Return an option as true or false, or None where it was not given."""
        value = self.text(name)
        if value is None:
            return None
        if value.lower() not in _TRUE | _FALSE:
            raise self.wrong(f"the option {name!r} is {value!r}: give true or false")
        return value.lower() in _TRUE

    def client(self) -> ClientSettings:
        """Return how to reach Redis: the options ``client`` (an import path) or ``url``.

        A malformed url is found here; nothing is connected.
        """
        with self.naming():
            client = self.text("client", DEFAULT_CLIENT) or DEFAULT_CLIENT
            url = self.text("url")
            if url is not None:
                from workstealing.store.client import checked_url

                _, scheme = checked_url(url)
                if scheme == "embedded":
                    raise ConfigurationError(
                        "embedded:// would start a server of its own in every executor: give the"
                        " URL of one that all of them reach"
                    )
            return ClientSettings(client, url)

    def finish(self) -> None:
        """Refuse options that were not taken. Raises: ConfigurationError."""
        if self._options:
            names = ", ".join(repr(name) for name in sorted(self._options))
            raise self.wrong(f"unknown options: {names}; it has {', '.join(self._known)}")

    def wrong(self, problem: str) -> ConfigurationError:
        """Return the error for a problem with an option."""
        return ConfigurationError(self._prefix + problem)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the format in a configuration error of what an option is handed to."""
        try:
            yield
        except ConfigurationError as error:
            if str(error).startswith(self._prefix):
                raise
            raise self.wrong(str(error)) from None


def without_path(options: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return options in which load("x") and save("x") mean the option of that name.

    Arguments:
        name: of the option that Spark's ``path`` stands for here.

    Raises: ConfigurationError if both are given.
    """
    found = {key.lower(): value for key, value in options.items()}
    if "path" in found:
        if name.lower() in found:
            raise ConfigurationError(
                f"both the option {name!r} and a path are given, which mean the same: give one"
            )
        found[name.lower()] = found.pop("path")
    return found


def runs(items: Sequence[T], most: int) -> list[tuple[T, ...]]:
    """Return items as at most so many runs of neighbours, as even as can be; none is empty.

    Arguments:
        most: how many runs, 1 or more.
    """
    count = min(most, len(items))
    ends = [len(items) * number // count for number in range(count + 1)] if count else []
    return [tuple(items[start:end]) for start, end in pairwise(ends)]


SCAN_TASKS = 2
"""So many tasks scan the keys of a server by default. A SCAN cannot be divided: each task walks all
keys of a node and reads those of its share, so more tasks cost the server more walks."""


def shares_of_a_node(wanted: int | None, nodes: int) -> int:
    """Return how many tasks scan each node.

    Arguments:
        wanted: in all; None: the default.
    """
    return -(-(wanted or SCAN_TASKS) // max(1, nodes))


def shared_out(sizes: Mapping[int, int], limit: int, turn: int) -> dict[int, int]:
    """Share a batch out among the parts of a source, as evenly as they allow.

    Arguments:
        sizes: how many items each part has, by its number.
        limit: of the batch, in items.
        turn: the number of the batch: if there are more parts than items, the parts take turns.

    Returns: how many items of each part, more than 0. Other parts fill in for one that has too few.
    """
    shards = sorted(shard for shard, size in sizes.items() if size > 0)
    if not shards or limit < 1:
        return {}
    if len(shards) > limit:
        first = turn * limit % len(shards)
        return dict.fromkeys((shards + shards)[first : first + limit], 1)
    counts: dict[int, int] = {}
    for position, shard in enumerate(sorted(shards, key=lambda shard: (sizes[shard], shard))):
        share = (limit - sum(counts.values())) // (len(shards) - position)
        counts[shard] = min(sizes[shard], share)
    return counts
