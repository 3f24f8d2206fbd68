"""A gunicorn application whose every caller is recruited for a slice that never ends.

REDIS_URL names the ledger's server. The watch looks ten times a second here: what it sees is under
test, and not how long five seconds are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from redis import Redis

from workstealing.integrations.wsgi import WorkStealingMiddleware
from workstealing.metrics import watching
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.prometheus import PrometheusHooks
from workstealing.recruiting import Slice
from workstealing.testing import always

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

watching.LONG_SECONDS = 0.0
watching.WATCH._seconds = 0.1

recruiter = always()


@recruiter.job(rate=1.0)
def held(slice: Slice) -> int:
    """Never return."""
    while True:
        time.sleep(0.1)


recruiter.add_hook(Ledger(Redis.from_url(os.environ["REDIS_URL"])))
if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
    recruiter.add_hook(PrometheusHooks())


def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer at once; the slice comes after it."""
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


app = WorkStealingMiddleware(answer, recruiter, when=lambda response: True)
