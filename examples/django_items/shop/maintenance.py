"""The recruiter, and what it recruits for."""

from __future__ import annotations

import os

from django.http.response import HttpResponseBase

from workstealing import Recruiter, connect
from workstealing.jobs import HashFieldExpiry
from workstealing.structures import VolatileHashes

# A throw-away server, unless REDIS_URL names another.
items = VolatileHashes(connect(os.environ.get("REDIS_URL", "embedded://")), namespace="items")
recruiter = Recruiter()
recruiter.install(HashFieldExpiry(items), rate=0.003)


def was_fast(response: HttpResponseBase) -> bool:
    """Say whether a response was a fast exit: a 304, or a page from the cache."""
    return response.status_code == 304 or response.headers.get("X-Cache") == "hit"
