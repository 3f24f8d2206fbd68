"""The demo's Flask app: items from a cache of volatile hashes, filled from a database on a miss."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flask
from markupsafe import escape

from workstealing.cli.demo.database import Database
from workstealing.cli.demo.ledger import FiguresFile, WriteLedger
from workstealing.cli.demo.plan import FOLDER_VARIABLE, WARM_UP, WARM_UP_LIFE_MS, Plan
from workstealing.integrations.flask import WorkStealing
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Recruiter
from workstealing.store import connect
from workstealing.structures import VolatileHashes

STATE_HEADER = "X-Cache"
_NAME = "workstealing-demo"
# A cache may be slow, but not silent for ever.
_SOCKET_SECONDS = 5.0


class Site:
    """What one worker process works with; made by its first request, never before a fork.

    Arguments: folder with the plan; recruiter.
    """

    def __init__(self, folder: Path, recruiter: Recruiter) -> None:
        self.plan = Plan.load(folder)
        self.client = connect(
            self.plan.url, socket_timeout=_SOCKET_SECONDS, socket_connect_timeout=_SOCKET_SECONDS
        )
        self.hashes: VolatileHashes = VolatileHashes(
            self.client,
            namespace=self.plan.namespace,
            backend="emulated",
            clock_shift_ms=self.plan.clock_shift_ms,
        )
        self.figures = FiguresFile(folder, recruiter)
        self._folder = folder
        self._recruiter = recruiter
        self._database: Database | None = None
        self._ledger: WriteLedger | None = None

    def open(self) -> None:
        """Begin with the real traffic: by now the plan has its rate, and the database is there."""
        if self._database is not None:
            return
        self.plan = Plan.load(self._folder)
        self._ledger = WriteLedger(self._folder)
        self._database = Database(self._folder)
        self._recruiter.add_hook(self.figures)
        if self.plan.rate:
            job = HashFieldExpiry(self.hashes, limit=self.plan.limit)
            self._recruiter.install(job, rate=self.plan.rate)

    def cached(self, key: str) -> dict[str, str]:
        """Return the parts that the cache has. One round trip."""
        values: list[Any] = self.hashes.hmget(key, list(self.plan.lives))
        return {
            part: value.decode()
            for part, value in zip(self.plan.lives, values, strict=True)
            if value is not None
        }

    def write(self, key: str, parts: dict[str, str], lives: Mapping[str, int]) -> dict[str, int]:
        """Put parts into the cache, each with its own time to live; return their deadlines.

        Both times in milliseconds. One round trip.
        """
        with self.hashes.pipeline() as queue:
            for part, value in parts.items():
                queue.hsetex(key, mapping={part: value}, px=lives[part])
            # In the same transaction: the deadlines as the server has set them, for the books.
            queue.hpexpiretime(key, *parts)
            *_, deadlines = queue.execute()
        return dict(zip(parts, deadlines, strict=True))

    def parts(self, item: str) -> tuple[dict[str, str], bool] | None:
        """Return all parts of an item, and whether the cache had them; None for no such item."""
        assert self._database is not None
        assert self._ledger is not None
        key = self.plan.key(item)
        cached = self.cached(key)
        if len(cached) == len(self.plan.lives):
            return cached, True
        stored = self._database.parts(item)
        if stored is None:
            return None
        missing = {part: stored[part] for part in self.plan.lives if part not in cached}
        self._ledger.record(key, self.write(key, missing, self.plan.lives))
        return stored | cached, False

    def close(self) -> None:
        """Write the final figures down and close what is open."""
        if self._database is None or self._ledger is None:
            return
        self._recruiter.flush()
        self.figures.write()
        self._database.close()
        self._ledger.close()
        self.client.close()


class Demo:
    """The extension that holds a worker's Site. Arguments: folder with the plan; recruiter."""

    def __init__(self, folder: Path, recruiter: Recruiter) -> None:
        self._folder = folder
        self.recruiter = recruiter
        self._site: Site | None = None

    @property
    def site(self) -> Site:
        """This process's Site, made when it is first asked for."""
        if self._site is None:
            self._site = Site(self._folder, self.recruiter)
        return self._site

    def close(self) -> None:
        """Close this process's Site, if it has one."""
        if self._site is not None:
            self._site.close()


def create_app(folder: Path | None = None) -> flask.Flask:
    """Return the app.

    Arguments: folder with the plan; by default the one that WORKSTEALING_DEMO_FOLDER names.
    """
    folder = Path(os.environ[FOLDER_VARIABLE]) if folder is None else folder
    plan = Plan.load(folder)
    recruiter = Recruiter(seconds=plan.slice_seconds, breaker=plan.breaker_seconds)
    demo = Demo(folder, recruiter)
    app = flask.Flask(__name__, static_folder=None)
    app.extensions[_NAME] = demo
    # Logged paths are items as they stand.
    app.url_map.merge_slashes = False

    @app.get(WARM_UP)
    def warm_up() -> str:
        """Do what a miss does, with a key that outlives the run; nobody enlists."""
        site = demo.site
        key = site.plan.key(WARM_UP)
        parts = site.cached(key) or dict.fromkeys(site.plan.lives, "warm-up")
        site.write(key, parts, dict.fromkeys(parts, WARM_UP_LIFE_MS))
        return page("warm-up", parts)

    @app.get("/", defaults={"path": ""})
    @app.get("/<path:path>")
    @recruiter.enlists(when=is_fast_exit)
    def item(path: str) -> flask.Response:
        """Answer with an item; the path as it was sent is its name."""
        target: str = flask.request.environ.get("RAW_URI") or f"/{path}"
        demo.site.open()
        found = demo.site.parts(target)
        if found is None:
            flask.abort(404)
        parts, is_hit = found
        response = flask.make_response(page(target, parts))
        response.headers[STATE_HEADER] = "hit" if is_hit else "miss"
        response.add_etag()
        response.make_conditional(flask.request)
        return response

    # The view decides for itself; the extension lets it enlist after its response.
    WorkStealing(app, recruiter, when=lambda _: False)
    return app


def is_fast_exit(response: flask.Response) -> bool:
    """Say whether the app was done early: a cache hit or a 304."""
    return response.status_code == 304 or response.headers.get(STATE_HEADER) == "hit"


def page(title: str, parts: dict[str, str]) -> str:
    """Return an item as a small page."""
    rows = "".join(
        f"<dt>{part}</dt><dd>{escape(value)}</dd>" for part, value in sorted(parts.items())
    )
    return f"<!doctype html><title>{escape(title)}</title><dl>{rows}</dl>\n"


def close(app: flask.Flask) -> None:
    """Close what this process has opened for the app, with the final figures written down."""
    demo: Demo = app.extensions[_NAME]
    demo.close()
