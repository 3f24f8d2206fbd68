"""A search index that follows a table: producers dirty rows, consumers index them, a reaper helps.

Run it from the checkout: `.venv/bin/python examples/dirty_list/app.py`
"""

from __future__ import annotations

import random
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import redis

from workstealing import Recruiter
from workstealing.jobs import IckReaper
from workstealing.store.embedded import EmbeddedServer
from workstealing.structures import NoLease, ShardedIck

DOCUMENTS = 500
CHANGES = 2_000
PRODUCERS = 2
CONSUMERS = 3
BATCH = 25
# A dead consumer's lease, and how long it is waited for that a recruit finds its batch.
DEAD_LEASE, PATIENCE = 300.0, 240.0
MEANINGS = {
    "documents": "rows of the table",
    "changes": "updates of rows by the producers; a row may be changed many times",
    "in a dead consumer's hand": "documents that a consumer had reserved when it died",
    "wrong in the index": "documents whose last change the index lacks: 0 is what we want",
    "left in the queue": "documents that nobody has indexed yet: 0 at the end",
    "enlisted": "empty reads, at which a consumer had a moment to spare",
    "returned by the reaper": "documents that recruits took back from the dead consumer",
}


def connect(path: Path) -> sqlite3.Connection:
    """Open the database; each thread has a connection of its own."""
    database = sqlite3.connect(path, timeout=30, isolation_level=None)
    # Thrown away at the end: nothing has to wait for the disk.
    database.execute("PRAGMA synchronous=OFF")
    return database


def create(path: Path) -> None:
    """Make a table of documents, and one that stands for the search index."""
    with connect(path) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE documents (id INTEGER PRIMARY KEY, version INTEGER)")
        database.execute("CREATE TABLE search_index (id INTEGER PRIMARY KEY, version INTEGER)")
        rows = [(number,) for number in range(DOCUMENTS)]
        database.executemany("INSERT INTO documents VALUES (?, 0)", rows)


def produce(path: Path, dirty: ShardedIck, stopped: threading.Event, seed: int) -> None:
    """Change rows, and say that they are dirty: first the row, then the queue."""
    chance, database = random.Random(seed), connect(path)
    for _ in range(CHANGES // PRODUCERS):
        if stopped.is_set():
            break
        # A few documents are hot: that neither starves them nor fills the queue.
        number = int(DOCUMENTS * chance.random() ** 3)
        database.execute("UPDATE documents SET version = version + 1 WHERE id = ?", (number,))
        dirty.add(str(number))
    database.close()


def index(database: sqlite3.Connection, members: list[bytes]) -> None:
    """Copy the rows as they are now into the index."""
    for member in members:
        database.execute(
            "INSERT OR REPLACE INTO search_index SELECT id, version FROM documents WHERE id = ?",
            (int(member),),
        )


def consume(
    path: Path, dirty: ShardedIck, recruiter: Recruiter, stopped: threading.Event, name: str
) -> None:
    """Index what is dirty, until nothing is and nobody dirties any more."""
    database = connect(path)
    while True:
        is_last_round = stopped.is_set()
        try:
            with dirty.lease(name, lease=5, wait=5) as ick:
                batch = ick.reserve(BATCH)
                while batch:
                    index(database, batch.members)
                    batch = ick.exchange(BATCH, *batch.members)
        except NoLease:
            continue
        # Nothing to do here: a moment to spare.
        recruiter.enlist()
        if is_last_round and not dirty.stats()["total_size"]:
            break
    database.close()


def in_hand(dirty: ShardedIck) -> list[int]:
    """Return how many documents are reserved in each ick shard."""
    return [shard["cset_size"] for shard in dirty.stats()["shards"]]


def run(client: Any, folder: Path) -> dict[str, int]:
    """Let everybody work; return how many rows there are, and how many the index has wrong."""
    path = folder / "documents.sqlite"
    create(path)
    dirty: ShardedIck = ShardedIck(client, "documents", ick_shards=4)
    dirty.add(str(number) for number in range(DOCUMENTS))

    # A consumer that dies with a batch in hand. Who leases its ick shard next would be given the
    # batch; as long as its own lease lasts, only a recruit takes it back.
    lease = dirty.lease("dead", lease=DEAD_LEASE)
    lost = len(lease.__enter__().reserve(BATCH))
    (of_the_dead,) = (number for number, held in enumerate(in_hand(dirty)) if held)

    # A recruit puts back what goes stale: any consumer that has a moment to spare.
    recruiter = Recruiter(seconds=0.2)
    recruiter.install(IckReaper(dirty, lease=0.4, limit=BATCH), rate=0.5)

    stopped = threading.Event()
    producers = [
        threading.Thread(target=produce, args=(path, dirty, stopped, seed))
        for seed in range(PRODUCERS)
    ]
    consumers = [
        threading.Thread(target=consume, args=(path, dirty, recruiter, stopped, f"consumer {each}"))
        for each in range(CONSUMERS)
    ]
    for thread in (*producers, *consumers):
        thread.start()
    try:
        # By what the Ick holds: a recruit whose reply was late does not know that it returned them.
        give_up = time.monotonic() + PATIENCE
        while (left := in_hand(dirty)[of_the_dead]) and time.monotonic() < give_up:
            time.sleep(0.05)
        for thread in producers:
            thread.join()
    finally:
        # At Ctrl-C, too: the dead consumer's lease ends, and the others come to an end.
        lease.__exit__(None, None, None)
        stopped.set()
        for thread in (*producers, *consumers):
            thread.join()

    database = connect(path)
    (wrong,) = database.execute(
        "SELECT count(*) FROM documents LEFT JOIN search_index USING (id)"
        " WHERE documents.version IS NOT search_index.version"
    ).fetchone()
    (changes,) = database.execute("SELECT sum(version) FROM documents").fetchone()
    database.close()
    return {
        "documents": DOCUMENTS,
        "changes": changes,
        "in a dead consumer's hand": lost,
        "wrong in the index": wrong,
        "left in the queue": dirty.stats()["total_size"],
        "enlisted": recruiter.stats()["enlisted"],
        "returned by the reaper": lost - left,
    }


def main() -> None:
    """Run it on a server of its own."""
    with (
        EmbeddedServer() as server,
        tempfile.TemporaryDirectory() as folder,
        redis.Redis.from_url(server.url) as client,
    ):
        for what, number in run(client, Path(folder)).items():
            print(f"{number:6}  {what}: {MEANINGS[what]}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
