"""The settings that go from the driver to the executors: names and plain numbers, no secret."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

VARIABLE = "WORKSTEALING_SPARK"
"""The variable of the Python workers' environment in which `install()` writes the settings."""


@dataclass(frozen=True, slots=True)
class EpilogueSettings:
    """Says how a Python process of Spark's builds its recruiter and where it counts.

    Fields: factory: the import path of a function that returns a Recruiter; counters: that of one
    that returns a client, None for no counters; application: under which name the counters stand;
    interval: how often they are sent, in seconds; accumulator: the number of the driver's
    accumulator, if there is one.
    """

    factory: str
    counters: str | None
    application: str
    interval: float
    accumulator: int | None = None

    def as_text(self) -> str:
        """Return the settings as text for the environment."""
        return json.dumps(asdict(self))


def settings_of_environment() -> EpilogueSettings | None:
    """Return the settings in this process's environment; None if there are none.

    Errors: ValueError, TypeError or KeyError for text that `as_text` has not written.
    """
    text = os.environ.get(VARIABLE)
    return EpilogueSettings(**json.loads(text)) if text else None
