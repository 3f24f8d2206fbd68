"""Works that are begun at the same moment, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


def at_once(works: Sequence[Callable[[], object]]) -> None:
    """Run all at the same time, each in a thread; raise what one of them raised."""
    start = threading.Barrier(len(works))
    problems: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised below
            problems.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
