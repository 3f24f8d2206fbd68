"""The visitors: some read pages, others have pages captured. They never ask twice."""

from __future__ import annotations

import http.client
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Self

from archive.web import FRONT_PAGE

PAGES = [FRONT_PAGE, *(f"note-{number}" for number in range(150))]
READERS, WRITERS = 3, 2
READ_PAUSE, WRITE_PAUSE = 0.008, 0.04
REQUEST_SECONDS = 30.0
VOCABULARY = (
    "anchor barley bridge candle cedar copper ember falcon garden harbour heron island juniper"
    " lantern marble needle orchard pepper quarry raven saddle thistle velvet willow"
)
WORDS = VOCABULARY.split()


class Traffic:
    """Visitors in threads of their own, from entering it until `end`.

    Arguments:
        address: of the site.

    Attributes: counts: answers by what they were: "hit", "miss", "captured", "held" (another worker
    captures that page just now), "cut off" (the worker was killed), "error"; acknowledged: the
    highest version of each page whose capture was answered.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[str, int] = {}
        self._address = address
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._calm, self._ended = threading.Event(), threading.Event()
        self._readers = [self._visitor(self._read, seed) for seed in range(READERS)]
        self._writers = [self._visitor(self._write, seed) for seed in range(WRITERS)]

    def __enter__(self) -> Self:
        # Every page is there before the first visitor reads.
        with closing(self._connection()) as connection:
            for page in PAGES:
                self.capture(connection, page)
        for thread in (*self._readers, *self._writers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def calm_down(self) -> None:
        """Let nobody capture any more, and all others read the front page, which is cached."""
        self._calm.set()
        for thread in self._writers:
            thread.join()

    def end(self) -> None:
        """Let the visitors go."""
        self._calm.set()
        self._ended.set()
        for thread in (*self._readers, *self._writers):
            thread.join()

    def capture(self, connection: http.client.HTTPConnection, page: str) -> None:
        """Have a page captured, once; remember its version if it was acknowledged."""
        with self._lock:
            number = next(self._numbers)
        chance = random.Random(number)
        body = " ".join([f"capture-{number}", *chance.choices(WORDS, k=20)])
        status, answer = self._ask(connection, "POST", page, body)
        became = {201: "captured", 409: "held", 0: "cut off"}.get(status, "error")
        with self._lock:
            self.counts[became] += 1
            if status == 201:
                version = json.loads(answer)["version"]
                self.acknowledged[page] = max(version, self.acknowledged.get(page, 0))

    def _read(self, seed: int) -> None:
        chance = random.Random(seed)

        def read(connection: http.client.HTTPConnection) -> None:
            # Every other visitor comes for the front page; afterwards all do.
            is_front = self._calm.is_set() or chance.random() < 0.5
            page = FRONT_PAGE if is_front else chance.choice(PAGES)
            status, became = self._ask(connection, "GET", page)
            with self._lock:
                self.counts[{200: became, 0: "cut off"}.get(status, "error")] += 1

        self._repeat(read, self._ended, READ_PAUSE)

    def _write(self, seed: int) -> None:
        chance = random.Random(-1 - seed)
        self._repeat(
            lambda connection: self.capture(connection, chance.choice(PAGES)),
            self._calm,
            WRITE_PAUSE,
        )

    def _visitor(self, visit: Callable[[int], None], seed: int) -> threading.Thread:
        # A daemon: a visitor who waits for a killed worker does not hold up the end.
        return threading.Thread(target=visit, args=(seed,), daemon=True)

    def _repeat(
        self,
        ask: Callable[[http.client.HTTPConnection], None],
        end: threading.Event,
        pause: float,
    ) -> None:
        with closing(self._connection()) as connection:
            while not end.wait(pause):
                ask(connection)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(*self._address, timeout=REQUEST_SECONDS)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, page: str, body: str = ""
    ) -> tuple[int, str]:
        """Return an answer's status and text (of a page, "hit" or "miss"); 0: there was none."""
        try:
            connection.request(method, f"/page/{page}", body or None)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            # The next request opens a new connection.
            connection.close()
            return 0, ""
        return answer.status, answer.getheader("X-Cache") or text
