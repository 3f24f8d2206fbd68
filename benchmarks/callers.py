"""An application's latency beside other work on its server, apart from that work's share of a CPU.

Callers call at a steady rate from a process of their own, and each call is timed from the moment at
which it was due. Rounds beside the work take turns with rounds beside the same work on *another*
server. Both take the same CPU of the machine, so only what callers wait for in the shared server
makes a difference. The median of the rounds' ratios outlives storms of noise, which a single round
does not.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from pathlib import Path

from figures import Figure, Target, cost_figure

Make = Callable[[int], Callable[[], object]]
"""Returns a call, given the number of its thread. It is pickled: a function of a module, or partial
of one."""

Work = Callable[[], AbstractContextManager[object]]
"""Works beside the callers while its block lasts, and has begun when the block does."""

_SETTLE_SECONDS = 0.2


class Callers:
    """Threads of a process of their own that call at a steady rate.

    Arguments:
        make: of each thread's call.
        per_second: the calls of all threads.

    Attributes: calls: how many have been measured.
    """

    def __init__(self, make: Make, per_second: float, threads: int = 2) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(make, per_second, threads, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe.recv()
        self.calls = 0

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def latencies(self, seconds: float) -> list[float]:
        """Return the seconds that each call of a span took, from when it was due."""
        self.begin()
        time.sleep(seconds)
        return self.end()

    def begin(self) -> None:
        """Measure from now on."""
        self._pipe.send("begin")
        self._pipe.recv()

    def end(self) -> list[float]:
        """Return the latencies since `begin`. Raises: SystemExit if a call failed."""
        self._pipe.send("end")
        found, failed = self._pipe.recv()
        if failed:
            raise SystemExit(f"a caller failed: {failed}")
        self.calls += len(found)
        return list(found)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(10)
        self._process.kill()


def _serve(make: Make, per_second: float, threads: int, pipe: Connection) -> None:
    """Be the process of callers, until the pipe is closed."""
    latencies: list[float] = []
    failed: list[str] = []

    def send(number: int) -> None:
        call, period = make(number), threads / per_second
        due = time.perf_counter() + number * period / threads
        while True:
            due += period
            time.sleep(max(0.0, due - time.perf_counter()))
            call()
            latencies.append(time.perf_counter() - due)

    # A thread that has died would only make the rate lower.
    threading.excepthook = lambda told: failed.append(f"{told.exc_type.__name__}: {told.exc_value}")
    for number in range(threads):
        threading.Thread(target=send, args=(number,), daemon=True).start()
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            if pipe.recv() == "begin":
                latencies.clear()
                pipe.send("begun")
            else:
                pipe.send((latencies.copy(), failed[0] if failed else ""))


def p99(latencies: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(latencies, n=100)[-1]


def p99_in_turn(
    callers: Callers, ours: Work, elsewhere: Work, rounds: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Return the p99 of each round beside the work, and beside the same work on another server.

    Arguments:
        ours: each is at work only in its own turn.
        elsewhere: each is at work only in its own turn.
        rounds: of each.
        seconds: of a round, of which some thousands of calls should come in all.
    """
    mine: list[float] = []
    theirs: list[float] = []
    callers.latencies(seconds)  # The first calls pay for connections and caches.
    for number in range(rounds):
        turns = [(ours, mine), (elsewhere, theirs)]
        for work, found in reversed(turns) if number % 2 else turns:
            with work():
                time.sleep(_SETTLE_SECONDS)
                found.append(p99(callers.latencies(seconds)))
    return mine, theirs


def p99_figure(
    name: str,
    callers: Callers,
    works: tuple[Work, Work],
    rounds: int,
    *,
    seconds: float,
    target: Target | None = None,
) -> Figure:
    """Return the figure of `p99_in_turn`.

    Arguments:
        works: ours, and that on another server.
    """
    before = callers.calls
    costs = p99_in_turn(callers, *works, rounds, seconds)
    figure = cost_figure(name, "the same work on another server", costs, target)
    figure.details["calls_a_side"] = (callers.calls - before) * rounds // (2 * rounds + 1)
    return figure


def apart(pid: int, *, cpu: int, last: bool = False) -> None:
    """Keep a process on one CPU; where there is one alone, or no such choice, change nothing.

    A busy scheduler moves processes to the CPU of those that wake them. So work for the callers'
    server and for another one would not only wait elsewhere, but run elsewhere, too.

    Arguments:
        last: whether it runs only while nobody else wants the CPU, as if on another machine.
    """
    if not hasattr(os, "sched_setaffinity") or cpu not in os.sched_getaffinity(0):
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})
        if last:
            os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))


@contextlib.contextmanager
def awake(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let a process work while the block lasts; it is stopped before and afterwards."""
    process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGSTOP)
