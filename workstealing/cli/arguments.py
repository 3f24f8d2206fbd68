"""The command line: its commands, the values of options, and a sentence for each wrong use.

Each command is one module with

- ``DESCRIPTION: str``, and ``EPILOG: str`` where there is more to say, for its --help;
- ``add_arguments(parser: argparse.ArgumentParser) -> None``;
- ``run(options: argparse.Namespace) -> int``, which returns the exit status and raises
  WorkStealingError for bad input (status 2 and one sentence).

A module is imported when its command is used. Only ``run`` imports the packages of an extra, so
that every --help works without any extra.

A value's function is for argparse's `type=`: it takes the text of an option, and raises
ArgumentTypeError with one sentence for a wrong one.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn, Protocol, cast

from workstealing import __version__


class CommandModule(Protocol):
    """The module of a command; EPILOG may be missing."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's options to its parser."""
        ...

    def run(self, options: argparse.Namespace) -> int:
        """Run the command and return its exit status."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module, and its line in `workstealing --help`."""

    module: str
    summary: str

    def load(self) -> CommandModule:
        """Import the module."""
        return cast("CommandModule", import_module(self.module))


COMMANDS = {
    "status": Command("workstealing.cli.status", "show the fleet's work and its backlog"),
    "top": Command("workstealing.cli.top", "the same, live"),
    "events": Command("workstealing.cli.events", "say what happened in the fleet, and who did it"),
    "jobs": Command("workstealing.cli.jobs", "list the jobs that a recruiter has installed"),
    "explain": Command("workstealing.cli.explain", "say why a job did or did not run lately"),
    "run": Command("workstealing.cli.run", "perform slices of one job, here and now"),
    "drain": Command("workstealing.cli.drain", "perform slices until nothing is left, for cron"),
    "plan": Command("workstealing.cli.plan", "choose a rate: forecast its lag and its cost"),
    "queue": Command(
        "workstealing.cli.queue", "look at a queue, put messages into it, or take them, to try it"
    ),
    "dashboard": Command("workstealing.cli.dashboard", "serve the dashboard to this machine"),
    "doctor": Command("workstealing.cli.doctor", "examine the installation and the Redis"),
    "survey": Command(
        "workstealing.cli.survey", "say whose keys fill a Redis, and how much of them is garbage"
    ),
    "undo": Command("workstealing.cli.undo", "bring back what a job of rules has removed"),
    "acl": Command("workstealing.cli.acl", "print the least rights for a user of the server"),
    "completion": Command("workstealing.cli.completion", "print a shell's completion script"),
    "demo": Command(
        "workstealing.cli.demo", "watch a web app's fast exits collect expired hash fields"
    ),
    "survey-demo": Command(
        "workstealing.cli.survey_demo", "survey the garbage of real programs, and collect it"
    ),
}
"""Every command, in the order of --help."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Print one sentence and exit with status 2."""
        sentence = " ".join(message.split())
        self.exit(2, f"{self.prog}: {sentence}; see {self.prog} --help\n")


class CommandParser(Parser):
    """The parser of one command, whose module is imported when it parses.

    Arguments:
        command: the one to be parsed; all others are those of ArgumentParser.
    """

    def __init__(self, *arguments: Any, command: Command | None = None, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._command = command

    def complete(self) -> None:
        """Add the command's own options, if that has not been done."""
        if self._command is not None:
            module, self._command = self._command.load(), None
            self.description = module.DESCRIPTION
            self.epilog = getattr(module, "EPILOG", None)
            module.add_arguments(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ArgumentParser does, once the options are there; refuse what it does not know.

        By this parser, and not by the one above it: its help lists the options.
        """
        self.complete()
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def build() -> tuple[argparse.ArgumentParser, dict[str, CommandParser]]:
    """Return the parser of the whole command line, and that of each command by its name."""
    parser = Parser(
        prog="workstealing",
        description="Background maintenance of Redis without a background process.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"workstealing {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=CommandParser)
    parsers = {
        name: commands.add_parser(name, help=command.summary, allow_abbrev=False, command=command)
        for name, command in COMMANDS.items()
    }
    return parser, parsers


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the named command.

    Arguments:
        argv: or None for the process's own.

    Returns: `command`, and that command's options. Raises: SystemExit with status 2 after one
    sentence on stderr for bad input, with status 0 after --help and --version.
    """
    parser, parsers = build()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.error(f"no command was named; expected one of: {', '.join(parsers)}")
    return options


HIGHEST = 10**15
SHUFFLE, FAIR, TIME = "shuffle", "fair", "time"
"""The kinds of queues, as --kind and JSON have them."""

LONGEST_DAYS = 36500
"""A hundred years: no system clock can sleep for much longer."""

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_MULTIPLES = {"": 1.0, "k": 1e3, "M": 1e6}
_DURATION = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(ms|s|min|m|h|d)?")
_FREQUENCY = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kM]?)\s*(?:/\s*(s|min|m|h|d))?")


def number(text: str) -> float:
    """Return a finite number. Raises: ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not finite")
    return value


def rate(text: str) -> float:
    """Return a job's rate, 0 < rate <= 1. Raises: ArgumentTypeError."""
    value = number(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no rate: expected 0 < rate <= 1")
    return value


def whole(text: str) -> int:
    """Return a whole number. Raises: ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def at_least(lowest: int, what: str) -> Callable[[str], int]:
    """Return a function for whole numbers from `lowest` on.

    Arguments:
        what: their plural noun.
    """

    def parsed(text: str) -> int:
        value = whole(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{text} is too few {what}: at least {lowest}")
        if value > HIGHEST:
            raise argparse.ArgumentTypeError(f"that is too many {what}: at most {HIGHEST:,}")
        return value

    return parsed


def duration(text: str) -> float:
    """Return seconds above 0, up to a hundred years: `60`, `60s`, `500ms`, `5m`, `2h`, `1d`.

    Raises: ArgumentTypeError.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: expected 60s, 500ms, 5m or 2h")
    seconds = number(found[1]) * _SECONDS[found[2] or "s"]
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too short: expected a duration above 0")
    if seconds > LONGEST_DAYS * _SECONDS["d"]:
        raise argparse.ArgumentTypeError(f"{text} is too long: at most {LONGEST_DAYS}d")
    return seconds


def frequency(text: str) -> float:
    """Return how often a second, 0 or more: `800/s`, `800`, `5k/s`, `30/min`, `2M/d`.

    Raises: ArgumentTypeError.
    """
    found = _FREQUENCY.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no frequency: expected 800/s, 5k/s, 30/min or 2M/d"
        )
    return number(found[1]) * _MULTIPLES[found[2]] / _SECONDS[found[3] or "s"]
