"""The tables, and the application that writes documents and marks them dirty."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import psycopg

from spark_pipeline.parts import Parts, open_database

SCHEMA = """
CREATE TABLE documents (
    id text PRIMARY KEY,
    version bigint NOT NULL,
    title text NOT NULL,
    body text NOT NULL
);
CREATE TABLE search (
    id text PRIMARY KEY,
    version bigint NOT NULL,
    title text NOT NULL,
    body text NOT NULL,
    words tsvector NOT NULL
);
CREATE INDEX search_words ON search USING gin (words);
CREATE VIEW behind AS
    SELECT documents.id
    FROM documents LEFT JOIN search USING (id)
    WHERE search.version IS NULL OR search.version < documents.version;
"""
CHANGE = """
INSERT INTO documents AS old (id, version, title, body) VALUES (%s, 1, %s, %s)
ON CONFLICT (id) DO UPDATE
SET version = old.version + 1, title = excluded.title, body = excluded.body
"""
WRITERS = 2
FIRST_CHUNK = 500
WORDS = (
    "anchor barley beacon bridge canal candle castle cedar chapel cinder copper cotton ember falcon"
    " ferry field forest garden gravel harbour hazel heather heron island ivory juniper kettle"
    " lantern ledger lichen marble meadow mirror morning mountain needle nettle orchard otter"
    " paper pebble pepper pigeon plaster quarry raven ribbon river saddle sailor salmon shadow"
    " shelter silver sparrow spindle stable starling station summer thimble thistle timber"
    " tunnel valley velvet village walnut weather willow window winter"
)
VOCABULARY = WORDS.split()


def create_tables() -> None:
    """Make the tables in an empty database."""
    with open_database(autocommit=True) as database:
        database.execute(SCHEMA)


def made_up_ids(count: int) -> list[str]:
    """Return ids for so many documents."""
    return [f"/notes/{number}/{VOCABULARY[number % len(VOCABULARY)]}" for number in range(count)]


def text_of(document: str, chance: random.Random) -> tuple[str, str]:
    """Return a title, made of the document's path, and a new body."""
    title = " ".join(re.findall(r"[^\W_]+", document)) or "home"
    return title[:200], " ".join(chance.choices(VOCABULARY, k=40))


class Application:
    """Writes documents, and marks them dirty once they are written.

    Arguments:
        parts: where they are marked.
        ids: of all documents.
        visits: it documents are changed, one after the other, over and over.
        pace: changes a second.

    Enter it to create the documents and to begin; leave it, or call `stop`, to end.
    """

    def __init__(
        self, parts: Parts, ids: Sequence[str], visits: Sequence[str], pace: float
    ) -> None:
        self._parts, self._ids, self._visits, self._pace = parts, ids, visits, pace
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._next = 0
        self.changes = 0
        self.problem: Exception | None = None
        self._threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True)
            for number in range(WRITERS)
        ]

    def __enter__(self) -> Self:
        self._create()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop changing documents; the last change is committed and marked."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _create(self) -> None:
        chance = random.Random(0)
        with open_database("application") as database:
            for start in range(0, len(self._ids), FIRST_CHUNK):
                chunk = self._ids[start : start + FIRST_CHUNK]
                with database.cursor() as cursor:
                    cursor.executemany(CHANGE, [(each, *text_of(each, chance)) for each in chunk])
                database.commit()
                self._mark(chunk)

    def _write(self, number: int) -> None:
        chance = random.Random(number + 1)
        try:
            with open_database(f"application writer {number}") as database:
                for document in self._turns():
                    self._change(database, document, chance)
        except Exception as error:  # noqa: BLE001 - the run reports it
            self.problem = error

    def _change(
        self, database: psycopg.Connection[Any], document: str, chance: random.Random
    ) -> None:
        """Change a document: first the row, committed, then the mark."""
        with database.transaction():
            database.execute(CHANGE, (document, *text_of(document, chance)))
        self._mark((document,))
        with self._lock:
            self.changes += 1

    def _mark(self, documents: Sequence[str]) -> None:
        self._parts.dirty.add(documents)
        # What is lost between here and there, TrackQueued finds.
        self._parts.behind.track(documents)

    def _turns(self) -> Iterator[str]:
        """Yield the next document for this writer, at its part of the pace, until the end."""
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = max(due + WRITERS / self._pace, time.monotonic() - 1.0)
            with self._lock:
                number, self._next = self._next, self._next + 1
            yield self._visits[number % len(self._visits)]
