"""Who reads: two groups, and a mirror that reads by offsets alone."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

from workstealing import Recruiter

READ = 200
BLOCK = 0.2


class Readers:
    """Threads that read until they are stopped, and enlist when they have found nothing.

    Enter it to begin, leave it to stop. `problem` is what has ended one of them before, or None.
    """

    def __init__(self, recruiter: Recruiter) -> None:
        self.problem: BaseException | None = None
        self._recruiter = recruiter
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, read: Callable[[], bool]) -> None:
        """Let a thread call this again and again; it returns whether it has found anything."""
        self._threads.append(threading.Thread(target=self._work, args=(read,), daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, read: Callable[[], bool]) -> None:
        try:
            while not self._stop.is_set():
                if not read():
                    self._recruiter.enlist()  # a fast exit: there is nothing to do
        except BaseException as error:  # noqa: BLE001 - shown at the end by whoever runs this
            self.problem = error


class Alerts:
    """A group that must miss nothing: it collects answers of 500 and above.

    It acknowledges what it has looked at. The member that reads first dies with the entries in its
    hands, which others are then given again.
    """

    def __init__(self, log: Any) -> None:
        self.group = log.group("alerts", ack=True, lease=1.0)
        self.seen: set[int] = set()
        self.errors = 0
        self.again = 0
        self.dropped = 0
        self._lock = threading.Lock()

    def member(self, name: str) -> Callable[[], bool]:
        """Return what a member does again and again."""

        def read() -> bool:
            entries = self.group.read(READ, BLOCK, member=name)
            with self._lock:
                if entries and not self.dropped:
                    self.dropped = len(entries)
                    return True  # dead; a new member of the same name takes its place
                for each in entries:
                    self.again += each.attempts > 1
                    if each.offset not in self.seen:
                        self.seen.add(each.offset)
                        self.errors += each.entry["status"] >= 500
            if entries:
                self.group.ack(*entries)
            return bool(entries)

        return read


class Popularity:
    """A group that counts hits by path, and changes its mind: then it goes back and counts anew."""

    def __init__(self, log: Any) -> None:
        self.group = log.group("popularity")
        self.counted_from = 0
        self.paths: Counter[str] = Counter()
        self._back: int | None = None
        self._lock = threading.Lock()

    def rewind(self, entries: int) -> None:
        """Let the next read go back by so many entries; what was counted is forgotten."""
        self._back = entries

    def top(self) -> str:
        """Return the path with most hits, and how many; "" without any."""
        with self._lock:
            return "".join(f"{path}, {hits:,} hits" for path, hits in self.paths.most_common(1))

    def read(self) -> bool:
        """Read once."""
        back, self._back = self._back, None
        if back is not None:
            self.counted_from = self.group.seek(max(0, self.group.offset() - back))
            with self._lock:
                self.paths.clear()
        entries = self.group.read(READ, BLOCK)
        with self._lock:
            self.paths.update(each.entry["path"] for each in entries)
        return bool(entries)


class Mirror:
    """Reads from offset to offset, without a group, and adds the same bytes to a Redis stream.

    It notes of each entry what the end of the run is judged by.

    Arguments:
        log: without a codec, so that entries are the bytes that are stored.
        stream: the key.
    """

    def __init__(self, client: Any, log: Any, stream: str) -> None:
        self.paths: list[str] = []
        self.minutes: Counter[str] = Counter()
        self.errors = 0
        self._client, self._log, self._stream = client, log, stream

    def read(self) -> bool:
        """Read once; wait for the very entry that comes next."""
        info, entries = self._log.read_range(len(self.paths), 1000, block=BLOCK)
        pipeline = self._client.pipeline(transaction=False)
        for each in entries:
            pipeline.xadd(self._stream, {"entry": each})
        # The stream holds no more entries than the log, so that the two can be compared.
        pipeline.xtrim(self._stream, maxlen=info.last + 1 - info.first, approximate=False)
        pipeline.execute()
        for each in entries:
            seen = json.loads(each)
            self.paths.append(seen["path"])
            self.minutes[seen["at"][:16]] += 1
            self.errors += seen["status"] >= 500
        return bool(entries)
