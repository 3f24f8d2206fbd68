"""The database from which the demo's cache is filled."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterable
from pathlib import Path

_NAME = "items.sqlite"
_WORDS = ("garbage", "idle", "moment", "lottery", "slice", "cache", "field", "worker", "recruit")


def create(folder: Path, items: Iterable[str], seed: int = 2) -> None:
    """Make a database with one row for each item, made up by a seeded chance."""
    chance = random.Random(seed)
    rows = (
        (
            item,
            " ".join(chance.choices(_WORDS, k=40)),
            ", ".join(chance.choices(_WORDS, k=4)),
            str(chance.randrange(10_000)),
        )
        for item in items
    )
    connection = sqlite3.connect(folder / _NAME)
    try:
        with connection:
            connection.execute(
                "CREATE TABLE items (item TEXT PRIMARY KEY, content TEXT, related TEXT, likes TEXT)"
                " WITHOUT ROWID"
            )
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
    finally:
        connection.close()


class Database:
    """A reader of that database, for the process that opened it. Arguments: folder."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(f"{(folder / _NAME).as_uri()}?mode=ro", uri=True)

    def parts(self, item: str) -> dict[str, str] | None:
        """Return the parts of an item, or None if there is no such item."""
        row = self._connection.execute(
            "SELECT content, related, likes FROM items WHERE item = ?", (item,)
        ).fetchone()
        return None if row is None else dict(zip(("content", "related", "likes"), row, strict=True))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
