"""The `workstealing` command.

A command loads its modules when it runs, so that `workstealing --help` works without any extra.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from workstealing.errors import UnwritableError, WorkStealingError

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
"""The exit status after Ctrl-C, as of a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `workstealing` command.

    Arguments:
        argv: the arguments after the program's name; by default the process's own.

    Returns: the exit status of the command; 2 for bad input, after one sentence on stderr; 1 if
    stdout takes no more.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            # The parent process has closed it: it wants to hear nothing.
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        # A job's name may hold characters that this terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(argv)
        # Here: at the interpreter's end no code could handle an error.
        sys.stdout.flush()
    except BrokenPipeError:
        _say_no_more()
        # `workstealing jobs | head -1` is no mistake.
        return 0
    except UnwritableError as error:
        sys.stderr.write(f"workstealing: {error}\n")
        _say_no_more()
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(argv: Sequence[str] | None) -> int:
    from workstealing.cli.arguments import COMMANDS, parse

    try:
        options = parse(argv)
    except SystemExit as done:
        # argparse has printed the help, the version, or a sentence.
        return done.code if isinstance(done.code, int) else BAD_INPUT
    try:
        return COMMANDS[options.command].load().run(options)
    except UnwritableError:
        raise
    except WorkStealingError as error:
        sys.stderr.write(f"workstealing {options.command}: {_sentence(error)}\n")
        return BAD_INPUT


def _sentence(error: WorkStealingError) -> str:
    # An error that quotes another one may hold its line ends.
    return " ".join(str(error).split())


def _say_no_more() -> None:
    """Write nothing more, not even the rest of the buffers."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
