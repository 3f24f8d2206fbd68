"""The dashboard as gunicorn serves it: `support.dashboard_app:make()`."""

from __future__ import annotations

import os

import flask
import redis

from support.dashboards import make_app
from workstealing import Recruiter
from workstealing.dashboard import Streams


def make() -> flask.Flask:
    """Return the app, on the server that the environment names."""
    recruiter = Recruiter()
    recruiter.job(rate=0.125, name="tidy")(lambda slice: 1)
    client = redis.Redis.from_url(os.environ["DASHBOARD_TEST_URL"])
    return make_app(recruiter, client, streams=Streams(every=0.2, lasts=60.0))
