"""`workstealing queue VERB NAME`: tools to look at queues, and to play with them.

Each verb is one module, as a command is: see `workstealing.cli.arguments`. A kind of queue is one
class, below `kind.OpenQueue`, and stands in `opening.KINDS`. A verb knows no kind by its name: it
asks the queue that `opening.opened` returns.
"""

from __future__ import annotations

import argparse

from workstealing.cli.arguments import Command

VERBS = {
    "observe": Command(
        "workstealing.cli.queue.observe", "look at a queue: waiting, pending and dead messages"
    ),
    "produce": Command("workstealing.cli.queue.produce", "put messages into a queue, to try it"),
    "consume": Command("workstealing.cli.queue.consume", "take messages out of it, to try it"),
    "work": Command(
        "workstealing.cli.queue.work", "call a function of yours with each message, until SIGTERM"
    ),
    "rule": Command(
        "workstealing.cli.queue.rule", "weights, caps and rates of a FairQueue, and why one waits"
    ),
    "move": Command(
        "workstealing.cli.queue.move", "carry a ShuffleQueue's messages over into a FairQueue"
    ),
}
"""Every verb, in the order of --help."""

DESCRIPTION = """\
Look at a ShuffleQueue, a FairQueue or a TimeShardQueue, or play with one: a producer, a consumer
and an observer in three terminals. A TimeShardQueue may be on Cassandra. `work` is a worker for an
application's messages.
"""
EPILOG = "Each VERB has a --help of its own, and --json."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verbs with their options to the command's parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        module = verb.load()
        added = verbs.add_parser(
            name,
            help=verb.summary,
            description=module.DESCRIPTION,
            epilog=getattr(module, "EPILOG", None),
            allow_abbrev=False,
        )
        module.add_arguments(added)


def run(options: argparse.Namespace) -> int:
    """Do what the verb says. Returns: its exit status. Raises: WorkStealingError for bad input."""
    return VERBS[options.verb].load().run(options)
