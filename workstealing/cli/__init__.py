"""The `workstealing` command.

What a command needs is loaded when it runs, so that `workstealing --help` works without any extra.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from workstealing.errors import WorkStealingError

BAD_INPUT = 2
INTERRUPTED = 130
"""The exit status after Ctrl-C, as of a shell."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `workstealing` command.

    Arguments: argv, the arguments after the program's name; by default the process's own. Returns:
    the exit status: what the command says, or 2 for bad input, after one sentence on stderr.
    """
    for stream in (sys.stdout, sys.stderr):
        # A job's name may hold what this terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(argv)
        # Here, not when the interpreter ends, where nobody could answer for what it raises.
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _run(argv: Sequence[str] | None) -> int:
    from workstealing.cli.arguments import COMMANDS, parse

    try:
        options = parse(argv)
    except SystemExit as done:
        # argparse has said what there was to say: help, the version, or a sentence.
        return done.code if isinstance(done.code, int) else BAD_INPUT
    try:
        return COMMANDS[options.command].load().run(options)
    except WorkStealingError as error:
        sys.stderr.write(f"workstealing {options.command}: {_sentence(error)}\n")
        return BAD_INPUT


def _sentence(error: WorkStealingError) -> str:
    # An error that quotes another one may hold its line ends.
    return " ".join(str(error).split())


def _reader_gone() -> int:
    """Let nothing more be written: `workstealing jobs | head -1` is no mistake."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
