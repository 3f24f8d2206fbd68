"""The archive's database: pages, the tasks that they are queued with, and the search index.

It is the source of truth: whatever is in Redis can be rebuilt from here, and the story is proved by
it. SQLite stands for the database of a site, so that the example needs no other server.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE pages (
    id TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    worker INTEGER NOT NULL
);
CREATE TABLE search (id TEXT PRIMARY KEY, version INTEGER NOT NULL, words TEXT NOT NULL);
CREATE TABLE tasks (
    task INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    state TEXT NOT NULL,
    since REAL NOT NULL
);
CREATE INDEX tasks_by_id ON tasks (id, state);
"""
CAPTURE = """
INSERT INTO pages AS old (id, version, body, worker) VALUES (?, 1, ?, ?)
ON CONFLICT (id) DO UPDATE
SET version = old.version + 1, body = excluded.body, worker = excluded.worker
RETURNING version
"""
# An older version never overwrites a newer one, however late its task comes.
INDEX = """
INSERT INTO search AS old (id, version, words) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, words = excluded.words
WHERE old.version < excluded.version
"""
NOW = "julianday('now') * 86400.0"


class Page(NamedTuple):
    """A page as it was captured last; worker: the process that captured it."""

    id: str
    version: int
    body: str
    worker: int


def words_of(body: str) -> str:
    """Return what the index keeps of a page: its words in order, each once."""
    return " ".join(sorted(set(body.split())))


class Store:
    """The database of one process; every call has a connection of its own.

    Arguments:
        path: of the SQLite file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that holds the one lock for writers; it is committed at the end."""
        with closing(self._connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    def create(self) -> None:
        """Make the tables in a new file."""
        with closing(self._connect()) as database:
            database.executescript(SCHEMA)

    def capture(self, page: str, body: str, worker: int) -> int:
        """Keep a new capture, and queue its page to be indexed; return the page's version."""
        with self.writing() as database:
            ((version,),) = database.execute(CAPTURE, (page, body, worker)).fetchall()
            database.execute(
                f"INSERT INTO tasks (id, version, state, since) VALUES (?, ?, 'queued', {NOW})",  # noqa: S608
                (page, version),
            )
        return int(version)

    def page(self, page: str) -> Page | None:
        """Return a page, None if it was never captured."""
        rows = self.rows("SELECT id, version, body, worker FROM pages WHERE id = ?", page)
        return Page(*rows[0]) if rows else None

    def index(self, pages: Sequence[str]) -> int:
        """Index pages as they are now, and mark their tasks as done; return how many pages."""
        with self.writing() as database:
            for page in pages:
                rows = database.execute("SELECT version, body FROM pages WHERE id = ?", (page,))
                for version, body in rows.fetchall():
                    database.execute(INDEX, (page, version, words_of(body)))
                    database.execute(
                        "UPDATE tasks SET state = 'done' WHERE id = ? AND version <= ?",
                        (page, version),
                    )
        return len(pages)

    def overdue(self, seconds: float, most: int) -> list[str]:
        """Return some pages that have been queued for longer than this, at random."""
        rows = self.rows(
            f"SELECT DISTINCT id FROM tasks WHERE state = 'queued' AND since < {NOW} - ?"  # noqa: S608
            " ORDER BY random() LIMIT ?",
            seconds,
            most,
        )
        return [page for (page,) in rows]

    def count(self, table: str) -> int:
        """Return how many rows a table has; a condition may follow its name."""
        ((number,),) = self.rows(f"SELECT count(*) FROM {table}")  # noqa: S608 - our own words
        return int(str(number))

    def rows(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Return what a query finds."""
        with closing(self._connect()) as database:
            return database.execute(query, values).fetchall()

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        # Thrown away at the end: nothing has to wait for the disk.
        database.execute("PRAGMA synchronous = OFF")
        return database
