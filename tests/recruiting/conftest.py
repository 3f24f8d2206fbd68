"""The fixtures that we ship for users serve our own tests, too."""

from __future__ import annotations

from workstealing.testing.pytest_plugin import (  # noqa: F401 - pytest finds fixtures by name
    always_recruiter,
    manual_clock,
    never_recruiter,
    recording_hooks,
)
