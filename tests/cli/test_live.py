"""The wish to stop, which signals note while the main thread waits for it."""

from __future__ import annotations

import subprocess
import sys

from support.patience import GUARD_SECONDS

EVERY_POINT = """
import signal
import sys

from workstealing.cli.live import stop_wish


def interrupted_at(point):
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if seen == point:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
        return trace

    with stop_wish() as wish:
        # Python 3.12 traces opcodes only if some frame has asked for it before.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(trace)
        wish.wait(0.001)
        sys.settrace(None)
        if seen == point:
            assert wish.is_set()
            assert wish.wait()
        return seen == point


point = 1
while interrupted_at(point):
    point += 1
print(point)
"""


def test_a_signal_at_any_point_of_a_wait_is_noted() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", EVERY_POINT],
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # It was interrupted at some points at least.
    assert int(done.stdout) > 5


HEARD_BY_ANOTHER_THREAD = """
import signal
import threading
import time

from workstealing.cli.live import stop_wish


def hear():
    # Python notes the signal, but nothing wakes the main thread up: as if it had come just before
    # that fell asleep.
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


with stop_wish() as wish:
    threading.Thread(target=hear).start()
    assert wish.wait()
"""


def test_a_signal_that_wakes_nobody_up_is_heard_soon() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", HEARD_BY_ANOTHER_THREAD],
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
