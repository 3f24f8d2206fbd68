"""A dashboard on a fakeredis, or on any server, in a Flask app of its own."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def client(fakeredis_server: Any) -> Any:
    """A client of an empty server."""
    return fakeredis_server.client()
