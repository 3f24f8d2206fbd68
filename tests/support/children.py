"""Works that are done in forked children of the test."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[[], Any]) -> int:
    """Do the work in a forked child; return its process id."""
    # A collection of garbage in the child would touch, and so copy, all that the parent has made.
    gc.freeze()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:  # noqa: BLE001 - nothing of a child may get into pytest's own frames
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    gc.unfreeze()
    return child


def ended_well(child: int) -> None:
    """Wait for the child's end, and see that it has done its work."""
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
