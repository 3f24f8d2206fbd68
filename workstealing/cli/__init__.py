"""The `workstealing` command.

What a command needs is loaded when it runs, so that `workstealing --help` works without any extra.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from workstealing.errors import WorkStealingError

BAD_INPUT = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `workstealing` command.

    Arguments: argv, the arguments after the program's name; by default the process's own. Returns:
    the exit status: what the command says, or 2 for bad input, after one sentence on stderr.
    """
    from workstealing.cli.arguments import parse

    try:
        options = parse(argv)
    except SystemExit as done:
        # argparse has said what there was to say: help, the version, or a sentence.
        return done.code if isinstance(done.code, int) else BAD_INPUT
    try:
        from workstealing.cli.demo import run

        return run(options)
    except WorkStealingError as error:
        sys.stderr.write(f"workstealing {options.command}: {error}\n")
        return BAD_INPUT
