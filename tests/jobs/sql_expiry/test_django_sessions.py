"""Django's own sessions under SqlExpiry: none that is live is ever removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "django_sessions.py"
SECONDS = 6


def django_database(url: sa.URL) -> dict[str, Any]:
    """Return Django's settings of a database."""
    if url.get_backend_name() == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.database}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "USER": url.username,
        "HOST": url.host,
        "PORT": url.port,
    }


@pytest.mark.slow
def test_no_live_session_is_removed_and_no_dead_one_stays(engine: sa.Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-P", PROGRAM, url, json.dumps(django_database(engine.url))]
    done = subprocess.run(
        [*command, str(SECONDS)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts.get("lost", 0) == 0, counts
    assert counts["removed"] >= 500, counts
    assert counts["expired_left"] == 0, counts
    # The test has tested something: sessions were renewed, and some were live at the end.
    assert counts["renewed"] > 20
    assert counts["checked"] > 0
    assert counts["left"] > 0
