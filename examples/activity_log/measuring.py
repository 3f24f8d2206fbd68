"""What the entries take of memory: in the log, and in a Redis stream with the very same ones."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Self

from redis.exceptions import ResponseError

SECONDS = 0.5
MOST_SAMPLES = 600


@dataclass(frozen=True)
class Sample:
    """What MEMORY USAGE says of both at one moment.

    Fields: seconds: since the first; entries, log_bytes: available in the log, and what all of its
    keys take; streamed, stream_bytes: the same of the stream. Bytes are 0 on a server that does not
    say.
    """

    seconds: float
    entries: int
    log_bytes: int
    streamed: int
    stream_bytes: int

    @property
    def log_each(self) -> float:
        """Bytes an entry in the log."""
        return self.log_bytes / max(self.entries, 1)

    @property
    def stream_each(self) -> float:
        """Bytes an entry in the stream."""
        return self.stream_bytes / max(self.streamed, 1)

    @property
    def ratio(self) -> float:
        """How many times as much an entry takes in the stream; 0 where nobody knows."""
        return self.stream_each / self.log_each if self.log_bytes else 0.0


class Measuring:
    """Measures twice a second, and keeps the samples. Enter it to begin, leave it to stop."""

    def __init__(self, client: Any, log: Any, stream: str) -> None:
        self.samples: list[Sample] = []
        self._client, self._log, self._stream = client, log, stream
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self.measure()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def measure(self) -> Sample:
        """Measure now."""
        streamed = self._client.xlen(self._stream)
        entries = self._log.length()
        sample = Sample(
            time.monotonic() - self._began,
            entries,
            self._usage(self._client.scan_iter(self._log.keys.base + b"*", count=1000)),
            streamed,
            self._usage([self._stream]),
        )
        self.samples = [*self.samples, sample][-MOST_SAMPLES:]
        return sample

    def _usage(self, keys: Any) -> int:
        """Return what all of these keys take."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            # SAMPLES 0: of every element, instead of a guess.
            pipeline.memory_usage(key, samples=0)
        try:
            return sum(size or 0 for size in pipeline.execute())
        except ResponseError:
            # fakeredis does not know the command.
            return 0

    def _work(self) -> None:
        while not self._stop.wait(SECONDS):
            self.measure()
