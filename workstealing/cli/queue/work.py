"""`workstealing queue work NAME MODULE:HANDLER`: a worker for an application's messages.

The threads are those of `workstealing.queue_worker`; here are the options, the signals and the end
of the process. The first signal only notes the wish to end. The second has its usual effect, which
is the end at once: its messages come again after their leases.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any

from workstealing.cli.arguments import at_least, duration, rate
from workstealing.cli.clients import (
    add_app_option,
    application_prints_to_stderr,
    found_at,
    load_app,
    named_app,
    said,
)
from workstealing.cli.live import STOP_SIGNALS, StopWish, stop_wish
from workstealing.cli.output import add_json_option, note, print_json, say
from workstealing.cli.queue.kind import LEASE, OpenQueue
from workstealing.cli.queue.opening import add_queue_options, opened
from workstealing.clock import spell
from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.queue_worker import DONE, ENDS, FAILED, GIVEN_BACK, LATE, REFUSED, QueueWorker
from workstealing.recruiting import Recruiter

NOT_SETTLED = 1
RATE, GRACE, BACKOFF, BACKOFF_CAP = 0.1, 30.0, 1.0, 300.0
_HANDLER = "handle"
# Threads wait for a message then, and no caller for this one.
_SLICE_SECONDS = 0.25
_LOOK_SECONDS = 1.0

_SAID = {
    DONE: "done",
    FAILED: "failed",
    GIVEN_BACK: "given back at the end",
    LATE: "too late, another consumer had it",
    REFUSED: "not settled",
}

DESCRIPTION = """\
Call a function with each message of a ShuffleQueue, a FairQueue or a TimeShardQueue on Redis. If it
returns, the message is acknowledged; if it raises, the message comes again later, with exponential
backoff and full jitter; max-attempts sets poison aside. For example: workstealing queue work emails
shop.emails:send --concurrency 8
"""
EPILOG = """\
SIGTERM and SIGINT end it: it takes nothing more, waits --grace for the running handlers, gives back
the messages of the others, and exits. A second one ends it at once. Exit status: 0; 1 if a message
in hand at the end could not be settled for certain, or if the queue refused the worker; 2 for bad
input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the verb's parser."""
    add_queue_options(parser)
    parser.add_argument(
        "handler",
        metavar="MODULE:HANDLER",
        help="the function, as package.module:name; it may be `async def`; without :NAME it is"
        f" called {_HANDLER}; modules are looked for in the current folder first",
    )
    parser.add_argument(
        "--concurrency",
        type=at_least(1, "threads"),
        default=1,
        metavar="N",
        help="how many messages are worked on at once, each in a thread (default: %(default)s)",
    )
    parser.add_argument(
        "--lease",
        type=duration,
        default=LEASE,
        metavar="S",
        help="for how long a message is this worker's without a heartbeat, of which there are three"
        " a lease; give all workers of a queue the same (default: %(default)gs)",
    )
    parser.add_argument(
        "--grace",
        type=duration,
        default=GRACE,
        metavar="S",
        help="how long the handlers may go on after SIGTERM (default: %(default)gs)",
    )
    parser.add_argument(
        "--backoff",
        type=duration,
        default=BACKOFF,
        metavar="S",
        help="the most time before a message that failed once comes again; it doubles with each"
        " failure (default: %(default)gs)",
    )
    parser.add_argument(
        "--backoff-cap",
        type=duration,
        default=BACKOFF_CAP,
        metavar="S",
        help="the most time that it may become (default: %(default)gs)",
    )
    parser.add_argument(
        "--max-attempts",
        type=at_least(1, "attempts"),
        metavar="N",
        help="a message that was delivered so often is set aside; give all workers of a queue the"
        " same (default: the queue's, 5)",
    )
    parser.add_argument(
        "--enlist",
        type=rate,
        default=RATE,
        metavar="RATE",
        help="the rate of the queue's own job, which brings back what dead workers had: a thread"
        " that finds nothing enlists (default: %(default)g)",
    )
    add_app_option(parser)
    parser.add_argument(
        "--consumer", metavar="NAME", help="this worker's name (default: the host and process)"
    )
    parser.add_argument(
        "--group", metavar="GROUP", help="the group of a ShuffleQueue (default: consumers)"
    )
    parser.add_argument(
        "--drain-all",
        action="store_true",
        help="look at every time shard of a TimeShardQueue, not only at that of the turn",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Work until a signal comes.

    Returns: 0, or 1 if a message in hand at the end could not be settled for certain, or if the
    queue refused the worker. Raises: WorkStealingError for bad input; nothing was taken then.
    """
    if options.cassandra is not None:
        raise ConfigurationError("a worker is for a queue on Redis: give --url, not --cassandra")
    with ExitStack() as connections, application_prints_to_stderr():
        handler = found_at(options.handler, "the handler", _HANDLER)
        # A module's own logging goes first.
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        queue = opened(options, connections)
        queue.require()
        worker = QueueWorker(
            queue.own,
            handler,
            concurrency=options.concurrency,
            lease=options.lease,
            backoff=options.backoff,
            backoff_cap=options.backoff_cap,
            group=options.group,
            drain_all=options.drain_all,
            consumer=options.consumer,
            recruiter=_recruiter(options, queue),
        )
        with stop_wish() as wish:
            is_well = _work(worker, wish, options.grace)
    if options.json:
        print_json({"queue": queue.name, "kind": queue.kind, **worker.ends})
    else:
        say(_text(worker))
    status = 0 if is_well else NOT_SETTLED
    if worker.is_abandoned:
        _leave(status)
    return status


def _recruiter(options: argparse.Namespace, queue: OpenQueue) -> Recruiter:
    """Return the application's recruiter, or a new one, with the queue's own job."""
    is_named = bool(named_app(options.app))
    recruiter = load_app(options.app) if is_named else Recruiter(seconds=_SLICE_SECONDS)
    job = queue.job()
    if job.name not in recruiter.jobs():
        recruiter.install(job, rate=options.enlist)
    return recruiter


def _work(worker: QueueWorker, wish: StopWish, grace: float) -> bool:
    """Work until the wish to end; say whether all went well."""
    worker.start()
    logging.getLogger("workstealing").info(
        "working on the queue %s: lease %s", worker.queue_name, spell(worker.lease)
    )
    while worker.failure is None and not wish.wait(_LOOK_SECONDS):
        pass
    if threading.current_thread() is threading.main_thread():
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
    is_settled = worker.stop(grace)
    if worker.failure is None:
        return is_settled
    if not isinstance(worker.failure, WorkStealingError):
        raise worker.failure
    note(f"the queue cannot be worked on: {said(worker.failure)}")
    return False


def _text(worker: QueueWorker) -> str:
    parts = [
        f"{worker.ends[end]:,} {_SAID.get(end, 'of which nobody knows')}"
        for end in ENDS
        if worker.ends[end] or end == DONE
    ]
    return ", ".join(parts)


def _leave(status: int) -> None:
    """End the process although a handler runs, which may hold what the usual end waits for."""
    provider: Any = sys.modules.get("opentelemetry.trace")
    with suppress(Exception):
        # Spans that wait in a batch.
        provider.get_tracer_provider().force_flush()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)
