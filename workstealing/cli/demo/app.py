"""The demo's Flask app, the books of its processes, and its settings for gunicorn.

The app answers with items from a cache of volatile hashes, and fills the cache on a miss. Each
process writes files of its own into the demo's temporary folder, so that the processes share
nothing and lose nothing when one of them ends.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import flask
from markupsafe import escape

from workstealing.integrations.flask import WorkStealing
from workstealing.jobs import HashFieldExpiry
from workstealing.recruiting import Hooks, Recruiter
from workstealing.recruiting.slice import OUTCOMES
from workstealing.store import connect
from workstealing.structures import VolatileHashes

FOLDER_VARIABLE = "WORKSTEALING_DEMO_FOLDER"
STATE_HEADER = "X-Cache"
# A path that is a miss every time, to measure the machine with.
WARM_UP = "/-/warm-up"
_INTERVAL_SECONDS = 0.25
_WORDS = ("garbage", "idle", "moment", "lottery", "slice", "cache", "field", "worker", "recruit")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """The settings of one run, in a file of the folder.

    Fields: lives: each part's time to live in milliseconds; breaker_seconds: for how long a worker
    leaves a silent server alone; rate of the job, 0.0 for no job at all; clock_shift_ms: for tests.
    """

    url: str
    namespace: str
    lives: dict[str, int]
    limit: int
    slice_seconds: float
    breaker_seconds: float
    rate: float = 0.0
    clock_shift_ms: int = 0

    def save(self, folder: Path) -> None:
        """Write the plan into the folder, in place of the one that is there."""
        _write(folder / "plan.json", asdict(self))

    @classmethod
    def load(cls, folder: Path) -> DemoSettings:
        """Return the plan in the folder."""
        return cls(**json.loads((folder / "plan.json").read_text()))

    def key(self, target: str) -> str:
        """Return the key of the hash that caches the parts of a request's target."""
        return f"workstealing:{self.namespace}:{target}"


class Books(Hooks):
    """The books of one process: each field that it writes, and its recruiter's figures.

    Arguments:
        recruiter: its figures are renewed at most four times a second.
    """

    def __init__(self, folder: Path, recruiter: Recruiter) -> None:
        self._writes = (folder / f"writes-{os.getpid()}").open("ab", buffering=0)
        self._figures = folder / f"figures-{os.getpid()}"
        self._recruiter = recruiter
        self._next = 0.0

    def record(self, key: str, deadlines: Mapping[str, int]) -> None:
        """Write down fields of one hash: its key, without spaces; deadlines in milliseconds."""
        lines = (f"{deadline} {field} {key}\n" for field, deadline in deadlines.items())
        self._writes.write("".join(lines).encode())

    def on_enlisted(self, *_: Any) -> None:
        """Renew the figures from the recruiter's stats alone, unless they are fresh."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL_SECONDS
            self._renew()

    def on_outcome(self, *_: Any) -> None:
        """Renew the figures, unless they are fresh."""
        self.on_enlisted()

    def _renew(self) -> None:
        stats = self._recruiter.stats()
        figures: Counter[str] = Counter(enlisted=stats["enlisted"])
        for job in stats["jobs"].values():
            for name in ("recruited", *OUTCOMES, "items"):
                figures[name] += job[name]  # type: ignore[literal-required]
        _write(self._figures, figures)

    def close(self) -> None:
        """Write the final figures down."""
        self._recruiter.flush()
        self._renew()
        self._writes.close()


def last_deadlines(folder: Path) -> dict[tuple[str, str], int]:
    """Return (key, field) -> the deadline in ms of its last write, by any process.

    A field's time to live never changes, so its last write is the one with the latest deadline.
    """
    last: dict[tuple[str, str], int] = {}
    for path in folder.glob("writes-*"):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                deadline, field, key = line.rstrip("\n").split(" ")
                last[key, field] = max(int(deadline), last.get((key, field), 0))
    return last


def total_figures(folder: Path) -> Counter[str]:
    """Return the sum of all processes' figures: enlisted, recruited, each outcome, items."""
    total: Counter[str] = Counter()
    for path in folder.glob("figures-*"):
        total.update(json.loads(path.read_text()))
    return total


def _write(path: Path, content: Mapping[str, Any]) -> None:
    # A reader sees the old file or the new one, never a part.
    fresh = path.with_name(f"fresh-{path.name}")
    fresh.write_text(json.dumps(content))
    fresh.replace(path)


class Site:
    """The parts of one worker process, opened by its first request, never before a fork."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.plan = plan = DemoSettings.load(folder)
        self.recruiter = Recruiter(seconds=plan.slice_seconds, breaker=plan.breaker_seconds)
        self._books: Books | None = None

    @cached_property
    def _hashes(self) -> Any:
        # A cache may be slow, but not silent for ever.
        client = connect(self.plan.url, socket_timeout=5.0, socket_connect_timeout=5.0)
        shift, name = self.plan.clock_shift_ms, self.plan.namespace
        return VolatileHashes(client, name, backend="emulated", clock_shift_ms=shift)

    def parts(self, item: str) -> tuple[dict[str, str], bool]:
        """Return all parts of an item, and whether the cache had them. Two round trips at most."""
        lives, key = self.plan.lives, self.plan.key(item)
        if item == WARM_UP:
            # A miss every time.
            cached = {}
        else:
            self._begin()
            values = zip(lives, self._hashes.hmget(key, list(lives)), strict=True)
            cached = {part: value.decode() for part, value in values if value is not None}
        missing = [part for part in lives if part not in cached]
        stored = {part: stored_part(item, part) for part in missing}
        if missing:
            with self._hashes.pipeline() as queue:
                for part in missing:
                    queue.hsetex(key, mapping={part: stored[part]}, px=lives[part])
                # In the same transaction: the deadlines as the server has set them, for the books.
                queue.hpexpiretime(key, *missing)
                *_, deadlines = queue.execute()
            if self._books is not None:
                self._books.record(key, dict(zip(missing, deadlines, strict=True)))
        return cached | stored, not missing

    def _begin(self) -> None:
        """Begin with the real traffic: by now the plan has its rate."""
        if self._books is None:
            self.plan = DemoSettings.load(self._folder)
            self._books = Books(self._folder, self.recruiter)
            self.recruiter.add_hook(self._books)
            if self.plan.rate:
                job = HashFieldExpiry(self._hashes, limit=self.plan.limit)
                self.recruiter.install(job, rate=self.plan.rate)

    def close(self) -> None:
        """Write the final figures down and close the connections."""
        if self._books is not None:
            self._books.close()
            self._hashes.client.close()


def stored_part(item: str, part: str) -> str:
    """Return a part of an item, made up by a seeded chance: it stands for a slow database."""
    return " ".join(random.Random(f"{item} {part}").choices(_WORDS, k=20))


def create_app(folder: Path | None = None) -> flask.Flask:
    """Return the app.

    Arguments:
        folder: with the plan; by default the one that WORKSTEALING_DEMO_FOLDER names.
    """
    site = Site(Path(os.environ[FOLDER_VARIABLE]) if folder is None else folder)
    app = flask.Flask(__name__, static_folder=None)
    app.extensions["workstealing-demo"] = site
    # Logged paths are items as they stand.
    app.url_map.merge_slashes = False

    @app.get("/", defaults={"path": ""})
    @app.get("/<path:path>")
    @site.recruiter.enlists(when=is_fast_exit)
    def item(path: str) -> flask.Response:
        """Answer with an item; the path as it was sent is its name."""
        target: str = flask.request.environ.get("RAW_URI") or f"/{path}"
        parts, is_hit = site.parts(target)
        rows = "".join(f"<dt>{part}</dt><dd>{text}</dd>" for part, text in sorted(parts.items()))
        page = f"<!doctype html><title>{escape(target)}</title><dl>{rows}</dl>\n"
        response = flask.make_response(page)
        response.headers[STATE_HEADER] = "hit" if is_hit else "miss"
        response.add_etag()
        response.make_conditional(flask.request)
        return response

    # The view decides for itself; the extension lets it enlist after its response.
    WorkStealing(app, site.recruiter, when=lambda _: False)
    return app


def is_fast_exit(response: flask.Response) -> bool:
    """Say whether the app was done early: a cache hit or a 304."""
    return response.status_code == 304 or response.headers.get(STATE_HEADER) == "hit"


# Settings for gunicorn, which reads the names of this module.
worker_class = "sync"
# One import for all workers, and the proof that a recruiter survives a fork.
preload_app = True
# Gunicorn kills a worker that hangs for longer; a worker whose parent has gone ends in half of it.
timeout = 10
graceful_timeout = 5
# Otherwise a file in the user's home.
control_socket_disable = True
loglevel = "warning"
_PARENT = os.getppid()


def worker_exit(server: Any, worker: Any) -> None:  # noqa: ARG001 - gunicorn's own signature
    """Write down the worker's last figures."""
    worker.app.wsgi().extensions["workstealing-demo"].close()


def on_exit(server: Any) -> None:  # noqa: ARG001 - gunicorn's own signature
    """Remove the temporary folder if the demo was killed and cannot do it any more."""
    if os.getppid() != _PARENT:
        shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)
