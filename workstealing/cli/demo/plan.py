"""What the worker processes have to know, in a file of the demo's temporary folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER_VARIABLE = "WORKSTEALING_DEMO_FOLDER"
# A path that does what a miss does, to measure the machine with, and for how long its key lives.
WARM_UP = "/-/warm-up"
WARM_UP_LIFE_MS = 3_600_000
_NAME = "plan.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of one run.

    Fields: url of the Redis; namespace of the volatile hashes; lives, each part's time to live in
    milliseconds; limit and slice_seconds, the bounds of a slice; breaker_seconds, for how long a
    worker leaves a server alone that did not answer; rate of the job, 0.0 for no job at all;
    clock_shift_ms, for tests, how far the hashes' clock is ahead of the server's.
    """

    url: str
    namespace: str
    lives: dict[str, int]
    limit: int
    slice_seconds: float
    breaker_seconds: float
    rate: float = 0.0
    clock_shift_ms: int = 0

    def save(self, folder: Path) -> None:
        """Write the plan into the folder, in place of the one that is there."""
        fresh = folder / f"fresh-{_NAME}"
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(folder / _NAME)

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Return the plan in the folder."""
        return cls(**json.loads((folder / _NAME).read_text()))

    def key(self, target: str) -> str:
        """Return the key of the hash that caches the parts of a request's target."""
        return f"workstealing:{self.namespace}:{target}"
