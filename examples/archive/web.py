"""The archive's site: pages out of a cache that expires field by field, captures, the dashboard.

gunicorn serves it: `gunicorn 'archive.web:create_app()'`.
"""

from __future__ import annotations

import os

import flask

from archive.parts import Parts, lock_name, page_key, parts, web_recruiter
from archive.store import words_of
from workstealing import Recruiter
from workstealing.dashboard import create_dashboard
from workstealing.integrations.flask import WorkStealing

# Seconds to live, by field: what is dear to make lives longer. A site would say hours.
TTLS = {"body": 1.5, "words": 3.0}
# A page that is always in the cache. Its hits go on when all others have expired.
FRONT_PAGE, FRONT_PAGE_SECONDS = "front", 3600.0
# Longer than a capture ever takes. The lock of a worker that dies ends by itself.
LOCK_SECONDS = 5.0


def create_app() -> flask.Flask:
    """Return the site with its dashboard, for one worker of gunicorn."""
    mine, recruiter = parts(), web_recruiter()
    app = flask.Flask(__name__)
    # The moment to spare: a page came from the cache, and its answer has gone out.
    WorkStealing(app, recruiter, when=lambda answer: answer.headers.get("X-Cache") == "hit")
    app.register_blueprint(
        create_dashboard(recruiter, mine.client, structures=[mine.dirty]),
        url_prefix="/workstealing",
    )
    add_pages(app, mine, recruiter)
    return app


def add_pages(app: flask.Flask, mine: Parts, recruiter: Recruiter) -> None:
    """Let the app show pages, and capture them."""

    @app.get("/page/<page>")
    def show(page: str) -> flask.Response:
        key = page_key(page)
        cached = mine.pages.hmget(key, list(TTLS))
        is_hit = None not in cached
        fields = [each.decode() for each in cached] if is_hit else load(page)
        answer = flask.jsonify(dict(zip(TTLS, fields, strict=True)))
        answer.headers["X-Cache"] = "hit" if is_hit else "miss"
        answer.headers["X-Queued"] = str(int(mine.queued.is_tracked(page)))
        return answer

    def load(page: str) -> list[str]:
        """Read a page from the database, and keep its parts, each for its own time."""
        found = mine.store.page(page)
        if found is None:
            flask.abort(404)
        fields = {"body": found.body, "words": words_of(found.body)}
        for field, ttl in TTLS.items():
            lives = FRONT_PAGE_SECONDS if page == FRONT_PAGE else ttl
            mine.pages.hsetex(page_key(page), mapping={field: fields[field]}, px=int(lives * 1000))
        return list(fields.values())

    @app.post("/page/<page>")
    def capture(page: str) -> tuple[dict[str, int], int]:
        token = mine.locks.acquire(lock_name(page), LOCK_SECONDS)
        if token is None:
            # Another worker captures it just now: nothing to do, a moment to spare.
            recruiter.enlist()
            return {}, 409
        # First the database, committed; then the marks. Wherever this process is killed, the task
        # in the database tells a recruit what is missing.
        version = mine.store.capture(page, flask.request.get_data(as_text=True), os.getpid())
        mine.dirty.add(page)
        mine.queued.track(page)
        mine.locks.release(lock_name(page), token)
        return {"version": version}, 201
