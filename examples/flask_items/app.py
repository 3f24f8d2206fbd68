"""A shop whose item pages come from a cache that the shop's own fast exits keep clean.

Each item is one hash with three parts, and each part has its own time to live. A part that came
from the cache took next to no time; its request enlists, and three in a thousand of those are
recruited to remove a few expired parts of other items.

Run it from the checkout: `.venv/bin/python examples/flask_items/app.py`
"""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import flask
from werkzeug.serving import make_server

from workstealing import Recruiter, connect
from workstealing.integrations.flask import WorkStealing
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

# Seconds to live, by part.
TTLS = {"description": 12 * 3600, "price": 3600, "stock": 5 * 60}


def create_app(
    client: Any, recruiter: Recruiter, database: str | Path, ttls: Mapping[str, int] = TTLS
) -> flask.Flask:
    """Return the app.

    Arguments:
        client: of Redis.
        recruiter: where the job is installed.
        database: the path of an SQLite file with a table `items`.
        ttls: seconds to live by part, which is a column's name too.
    """
    app = flask.Flask(__name__)
    hashes = VolatileHashes(client, namespace="items")
    recruiter.install(HashFieldExpiry(hashes, limit=5), rate=0.003)
    # The cached functions alone enlist, at a hit, and after the response has gone out.
    WorkStealing(app, recruiter, when=lambda _: False)

    def load(part: str, item: int) -> str:
        """Read one part of an item from the database."""
        flask.g.is_miss = True
        with closing(sqlite3.connect(database)) as connection:
            connection.row_factory = sqlite3.Row
            row = connection.execute("SELECT * FROM items WHERE id = ?", (item,)).fetchone()
        if row is None:
            flask.abort(404)
        return str(row[part])

    def cached(part: str, ttl: int) -> Callable[[int], str]:
        """Return the reader of one part, which is kept for its own time."""
        keep = hashes.cached(ttl=ttl, key="item:{item}", field=part, recruiter=recruiter)
        return keep(lambda item: load(part, item))

    readers = {part: cached(part, ttl) for part, ttl in ttls.items()}

    @app.get("/item/<int:item>")
    def page(item: int) -> flask.Response:
        parts = {part: read(item) for part, read in readers.items()}
        response = flask.jsonify({"id": item, **parts})
        response.headers["X-Cache"] = "miss" if "is_miss" in flask.g else "hit"
        response.add_etag()
        response.make_conditional(flask.request)
        return response

    @app.get("/figures")
    def figures() -> dict[str, Any]:
        return dict(recruiter.stats())

    return app


def create_database(path: str | Path, items: int = 1_000) -> None:
    """Fill a new SQLite file with items."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TABLE items (id INTEGER PRIMARY KEY, description TEXT, price TEXT, stock INT)"
        )
        connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?)",
            ((n, f"The {n}th thing", f"{n % 90 + 10}.00", n % 7) for n in range(1, items + 1)),
        )


def main() -> None:
    """Serve on a free port, or on PORT, from a throw-away Redis unless REDIS_URL names another."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "items.sqlite")
        create_database(database)
        client = connect(os.environ.get("REDIS_URL", "embedded://"))
        app = create_app(client, Recruiter(), database)
        port = int(os.environ.get("PORT", "0"))
        server = make_server("127.0.0.1", port, app, threaded=True)
        address = f"http://127.0.0.1:{server.server_port}"
        print(f"curl -i {address}/item/17     # X-Cache: miss, then hit", flush=True)
        print(f"curl {address}/figures        # who enlisted, who was recruited", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
