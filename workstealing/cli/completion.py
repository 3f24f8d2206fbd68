"""`workstealing completion SHELL`: the script by which a shell completes commands and options."""

from __future__ import annotations

import argparse

from workstealing.cli.output import add_json_option, print_json, say
from workstealing.errors import MissingExtraError

SHELLS = ("bash", "zsh", "fish")

DESCRIPTION = """\
Print a script that lets a shell complete the commands and options of `workstealing`.
"""
EPILOG = """\
For example: workstealing completion bash >> ~/.bash_completion; or, for fish: workstealing
completion fish > ~/.config/fish/completions/workstealing.fish; or, for zsh, in ~/.zshrc after
compinit: eval "$(workstealing completion zsh)"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the script. Returns: 0. Raises: MissingExtraError without shtab."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        if error.name != "shtab":
            raise
        raise MissingExtraError("cli", "shtab") from error
    from workstealing.cli.arguments import build

    parser, parsers = build()
    for each in parsers.values():
        each.complete()
    script = shtab.complete(parser, shell=options.shell)
    if options.json:
        print_json({"shell": options.shell, "script": script})
    else:
        say(script)
    return 0
