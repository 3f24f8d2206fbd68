"""`workstealing queue produce NAME [MESSAGE ...]`: messages from arguments or standard input."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator

from workstealing.cli.output import add_json_lines_option, note, print_json, printable, say
from workstealing.cli.queue_opening import add_queue_options, add_setting_options, opened
from workstealing.cli.values import at_least, duration, when
from workstealing.errors import ConfigurationError

INTERRUPTED = 130

DESCRIPTION = """\
Put messages into a queue: each MESSAGE, or else each line of standard input. Prints the id of each,
a line each.
"""
EPILOG = """\
WHEN is 5m (from now), 2026-11-22T08:00:00Z, or @1795334400 (Unix seconds). For example:
workstealing queue produce mails --kind shuffle --tenant shop-17 'hello'; or, for one message a
second until Ctrl-C: workstealing queue produce reminders --kind time --due 5m --every 1s 'hello'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the action's parser."""
    add_queue_options(parser)
    parser.add_argument(
        "messages",
        metavar="MESSAGE",
        nargs="*",
        default=[],
        help="the messages (default: the lines of standard input)",
    )
    parser.add_argument(
        "--count",
        type=at_least(1, "messages"),
        metavar="N",
        help="end after so many; MESSAGEs are repeated for that (default: each once, or with"
        " --every until Ctrl-C)",
    )
    parser.add_argument(
        "--every", type=duration, metavar="S", help="wait so long between two messages: 1s, 100ms"
    )
    add_json_lines_option(parser)
    shuffle = parser.add_argument_group("for a ShuffleQueue")
    shuffle.add_argument(
        "--tenant",
        action="append",
        metavar="TENANT",
        help="whose messages these are; of several --tenant, each in turn",
    )
    shuffle.add_argument(
        "--deadline", type=when, metavar="WHEN", help="deliver none after that (default: none)"
    )
    shuffle.add_argument(
        "--fields",
        action="store_true",
        default=None,
        help="each message is a JSON object, whose members become the message's fields (default:"
        " the text becomes the field 'message')",
    )
    due = parser.add_argument_group("for a TimeShardQueue")
    due.add_argument(
        "--due",
        "--delay",
        type=when,
        metavar="WHEN",
        help="deliver none before that (default: at once)",
    )
    add_setting_options(parser, is_producing=True)


def run(options: argparse.Namespace) -> int:
    """Put the messages into the queue.

    Returns: 0, or 130 if Ctrl-C came before the end of what was asked for. Raises:
    WorkStealingError for bad input; connection faults.
    """
    queue = opened(options)
    is_endless = bool(options.messages) and options.count is None and options.every is not None
    try:
        for number, message in enumerate(messages(options)):
            if number and options.every is not None:
                time.sleep(options.every)
            sent = queue.put(message)
            if options.json:
                print_json(sent)
            else:
                say(printable(sent["id"]))
    except KeyboardInterrupt:
        return 0 if is_endless else INTERRUPTED
    return 0


def messages(options: argparse.Namespace) -> Iterator[bytes]:
    """Yield the messages that were asked for, as bytes: a terminal's text may be no UTF-8."""
    if not options.messages:
        if sys.stdin is None:
            raise ConfigurationError(
                "there is no message: name it, or leave standard input open for it"
            )
        if sys.stdin.isatty():
            note("messages are read from here, one a line, until Ctrl-D")
        lines = (line.removesuffix(b"\n") for line in sys.stdin.buffer)
        yield from itertools.islice(lines, options.count)
        return
    named = [os.fsencode(each) for each in options.messages]
    is_once = options.count is None and options.every is None
    yield from named if is_once else itertools.islice(itertools.cycle(named), options.count)
