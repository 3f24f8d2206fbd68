"""A shop whose item pages come from a cache that the shop's own fast exits keep clean.

Each item is one hash with three parts, and each part has its own time to live. A page that came
from the cache, or is a 304, took next to no time; its request enlists, and three in a thousand of
those are recruited to remove a few expired parts of other items.

Run it from the checkout: `.venv/bin/python examples/flask_items/app.py`
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Mapping
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


def was_fast(response: flask.Response) -> bool:
    """Say whether a response was a fast exit: a 304, or a page from the cache."""
    return response.status_code == 304 or response.headers.get("X-Cache") == "hit"


def create_app(
    client: Any, recruiter: Recruiter, database: str | Path, ttls: Mapping[str, int] = TTLS
) -> flask.Flask:
    """Return the app.

    Arguments: client, of Redis; recruiter, where the job is installed; database, the path of an
    SQLite file with a table `items`; ttls, seconds to live by part, which is a column's name too.
    """
    app = flask.Flask(__name__)
    hashes = VolatileHashes(client, namespace="items")
    recruiter.install(HashFieldExpiry(hashes, limit=5), rate=0.003)
    # Only the decorated view enlists, and after its response has gone out.
    WorkStealing(app, recruiter, when=lambda _: False)

    def load(item: int, parts: list[str]) -> dict[str, str]:
        """Read parts of an item from the database, and cache each for its own time."""
        with closing(sqlite3.connect(database)) as connection:
            connection.row_factory = sqlite3.Row
            row = connection.execute("SELECT * FROM items WHERE id = ?", (item,)).fetchone()
        if row is None:
            flask.abort(404)
        found = {part: str(row[part]) for part in parts}
        with hashes.pipeline() as pipeline:
            for part, value in found.items():
                pipeline.hsetex(f"item:{item}", mapping={part: value}, ex=ttls[part])
            pipeline.execute()
        return found

    @app.get("/item/<int:item>")
    @recruiter.enlists(when=was_fast)
    def page(item: int) -> flask.Response:
        cached = hashes.hmget(f"item:{item}", list(ttls))
        parts = {
            part: value.decode()
            for part, value in zip(ttls, cached, strict=True)
            if value is not None
        }
        missing = [part for part in ttls if part not in parts]
        if missing:
            parts |= load(item, missing)
        response = flask.jsonify({"id": item, **{part: parts[part] for part in ttls}})
        response.headers["X-Cache"] = "miss" if missing else "hit"
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
    main()
