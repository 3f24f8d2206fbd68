"""`workstealing queue consume NAME`: messages taken, printed, acknowledged or given back."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from workstealing.cli.output import add_json_lines_option, note, print_json, printable, say
from workstealing.cli.queue_opening import (
    CommandQueue,
    add_queue_options,
    add_setting_options,
    opened,
)
from workstealing.cli.values import at_least, duration, share, waiting

INTERRUPTED = 130
LEASE_SECONDS = 60.0
# No wait is longer than this, so that nothing depends on one connection's staying alive.
LONGEST_WAIT = 5.0

DESCRIPTION = """\
Take messages out of a queue and print them, a line each, until Ctrl-C. A message is acknowledged
once it has been printed, so that it does not come again.
"""
EPILOG = """\
What steers a terminal is spelled out. A message that could not be printed, because its reader has
gone, is given back. For example: workstealing queue consume mails --group trial --count 10 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the action's parser."""
    add_queue_options(parser)
    parser.add_argument(
        "--consumer",
        metavar="NAME",
        help="as whom (default: a name made of this machine's and the process's number)",
    )
    parser.add_argument(
        "--count", type=at_least(1, "messages"), metavar="N", help="end after so many messages"
    )
    parser.add_argument(
        "--block",
        type=waiting,
        metavar="S",
        help="end when no message has come for so long: 10s, or 0 to take what is there (default:"
        " wait until Ctrl-C)",
    )
    parser.add_argument(
        "--ack",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="acknowledge what was printed, or leave it as a consumer does that dies (default:"
        " --ack)",
    )
    parser.add_argument(
        "--fail",
        type=share,
        default=0.0,
        metavar="SHARE",
        help="give this share of the messages back as failed, 0 to 1: of 0.25 every fourth"
        " (default: 0)",
    )
    parser.add_argument(
        "--delay",
        type=duration,
        metavar="S",
        help="what is given back comes again after so long (default: at once)",
    )
    add_json_lines_option(parser)
    shuffle = parser.add_argument_group("for a ShuffleQueue")
    shuffle.add_argument(
        "--group",
        metavar="GROUP",
        help="of which group: each group gets every message; a new one begins with all that are"
        " there",
    )
    due = parser.add_argument_group("for a TimeShardQueue")
    due.add_argument(
        "--lease",
        type=duration,
        metavar="S",
        help=f"how long a message is this consumer's alone (default: {LEASE_SECONDS:g} s)",
    )
    due.add_argument(
        "--drain-all",
        action="store_true",
        default=None,
        help="look into every time shard, not only into the one whose turn it is",
    )
    add_setting_options(parser)


def run(options: argparse.Namespace) -> int:
    """Take messages until there were enough, none comes, or Ctrl-C.

    Returns: 0, or 130 if Ctrl-C came before --count or --block could end it. Raises:
    WorkStealingError for bad input; connection faults; BrokenPipeError.
    """
    if options.consumer is None:
        options.consumer = f"cli-{socket.gethostname()}-{os.getpid()}"
    consuming = Consuming(opened(options), options)
    is_endless = options.count is None and options.block is None
    try:
        consuming.work()
    except KeyboardInterrupt:
        return 0 if is_endless else INTERRUPTED
    finally:
        if not options.json and consuming.taken:
            note(consuming.summary())
    return 0


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for what is at most a round trip, so that what became of it is known."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class Consuming:
    """Takes messages one by one, and settles each once it has been printed.

    Arguments: queue; options of the action.
    """

    def __init__(self, queue: CommandQueue, options: argparse.Namespace) -> None:
        self._queue, self._options = queue, options
        self.taken = self.acknowledged = self.given_back = 0
        self._owed = 0.0

    def work(self) -> None:
        """Take and settle. Errors: of the queue, of printing, and KeyboardInterrupt."""
        while self._options.count is None or self.taken < self._options.count:
            taken = self._next()
            if taken is None:
                return
            self.taken += 1
            try:
                self._show(self._queue.shown(taken))
            except BaseException:
                # Nobody has seen it: it must not wait until its consumer counts as dead.
                self._queue.give_back(taken, None)
                self.given_back += 1
                raise
            with _uninterrupted():
                self._settle(taken)

    def summary(self) -> str:
        """Return what became of the messages, for people."""
        kept = self.taken - self.acknowledged - self.given_back
        parts = [f"{self.acknowledged:,} acknowledged"]
        parts += [f"{self.given_back:,} given back"] if self.given_back else []
        parts += [f"{kept:,} left unacknowledged"] if kept else []
        return f"{self.taken:,} message{'' if self.taken == 1 else 's'}: {', '.join(parts)}"

    def _next(self) -> Any:
        """Return a message, or None once none has come for as long as was asked for."""
        wait = self._options.block
        begun = time.monotonic()
        while True:
            left = LONGEST_WAIT if wait is None else wait - (time.monotonic() - begun)
            taken = self._queue.take(max(0.0, min(left, LONGEST_WAIT)))
            if taken is not None:
                return taken
            if wait is not None and time.monotonic() - begun >= wait:
                return None

    def _show(self, shown: dict[str, Any]) -> None:
        if self._options.json:
            print_json(shown)
        else:
            say(printable(self._queue.line(shown)))

    def _settle(self, taken: Any) -> None:
        self._owed += self._options.fail
        # A share of thirds adds up to a little less than one.
        if self._owed >= 1.0 - 1e-9:
            self._owed -= 1.0
            self._queue.give_back(taken, self._options.delay)
            self.given_back += 1
        elif self._options.ack:
            self._queue.ack(taken)
            self.acknowledged += 1
