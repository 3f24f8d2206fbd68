"""Django opens a cache at its first use, and our cache installs its job then: commands open it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django")

SETTINGS = """
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
    "shop": {
        "BACKEND": "workstealing.integrations.django_cache.Cache",
        "LOCATION": %r,
        "OPTIONS": {"NAMESPACE": "shop", "RECRUITER": "maintenance:recruiter"},
    },
}
"""
MAINTENANCE = "from workstealing import Recruiter\n\nrecruiter = Recruiter()\n"


def jobs(folder: Path, location: str, **variables: str) -> tuple[list[str], str]:
    """Return what `workstealing jobs` lists in a project, and what it writes beside."""
    (folder / "shop_settings.py").write_text(SETTINGS % location)
    (folder / "maintenance.py").write_text(MAINTENANCE)
    done = subprocess.run(
        [sys.executable, "-m", "workstealing", "jobs", "--app", "maintenance", "--json"],
        env={**os.environ, **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    listed: dict[str, Any] = json.loads(done.stdout)
    return [each["name"] for each in listed["jobs"]], done.stderr


@pytest.mark.slow
def test_the_job_of_a_lazy_cache_is_known(tmp_path: Path) -> None:
    named = {"DJANGO_SETTINGS_MODULE": "shop_settings"}
    # Nothing is asked: no server listens there.
    assert jobs(tmp_path, "redis://localhost:1/0", **named) == (["hash_field_expiry.shop"], "")
    found, said = jobs(tmp_path, "nonsense://localhost", **named)
    assert found == []
    assert "Django's caches could not be opened, so their jobs are missing: " in said
    assert jobs(tmp_path, "redis://localhost:1/0") == ([], "")
