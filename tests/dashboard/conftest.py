"""A dashboard on a fakeredis, or on any server, in a Flask app of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["workstealing.testing.pytest_plugin"]


@pytest.fixture
def client(fakeredis_server):
    """A client of an empty server."""
    return fakeredis_server.client()
