"""Options of sources and sinks: parsed once, on the driver, before any task runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from workstealing.errors import ConfigurationError
from workstealing.spark.clients import DEFAULT_CLIENT, ClientSettings

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class OptionReader:
    """Takes options out of what Spark hands over; what nobody has taken is unknown.

    Arguments: format: the source's name, for errors; options: as Spark gives them, whose names
    differ in case only by chance. Values of options never appear in errors unless they are taken
    by `number`, `choice` or `boolean`.
    """

    def __init__(self, format: str, options: Mapping[str, str]) -> None:  # noqa: A002 - Spark's word
        self.format = format
        self._options = {name.lower(): value for name, value in options.items()}
        self._known: list[str] = []

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return an option's text, or the default; an empty one is an error."""
        self._known.append(name)
        value = self._options.pop(name.lower(), None)
        if value is None:
            return default
        if not value:
            raise self.wrong(f"the option {name!r} is empty: give it a value, or leave it out")
        return value

    def required(self, name: str, meaning: str) -> str:
        """Return an option's text, or raise an error that says what it means."""
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

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of several words; the first one is the default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise self.wrong(f"the option {name!r} is {value!r}: give {' or '.join(choices)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Return an option as true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUE | _FALSE:
            raise self.wrong(f"the option {name!r} is {value!r}: give true or false")
        return value.lower() in _TRUE

    def client(self) -> ClientSettings:
        """Return how to reach Redis: the options ``client`` (an import path) or ``url``."""
        with self.naming():
            client = self.text("client", DEFAULT_CLIENT) or DEFAULT_CLIENT
            return ClientSettings(client, self.text("url"))

    def finish(self) -> None:
        """Raise an error if there is an option that nobody has taken."""
        if self._options:
            names = ", ".join(repr(name) for name in sorted(self._options))
            raise self.wrong(f"unknown options: {names}; it has {', '.join(self._known)}")

    def wrong(self, problem: str) -> ConfigurationError:
        """Return the error for a problem with an option."""
        return ConfigurationError(f"format {self.format!r}: {problem}")

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Name the format in a configuration error of what an option is handed to."""
        try:
            yield
        except ConfigurationError as error:
            raise self.wrong(str(error)) from None


def without_path(options: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return options in which load("x") and save("x") mean the option of that name.

    Arguments: options; name: of the option that Spark's ``path`` stands for here. Errors:
    ConfigurationError if both are given.
    """
    found = {key.lower(): value for key, value in options.items()}
    if "path" in found:
        if name.lower() in found:
            raise ConfigurationError(
                f"both the option {name!r} and a path are given, which mean the same: give one"
            )
        found[name.lower()] = found.pop("path")
    return found
