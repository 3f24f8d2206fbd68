"""Entries of an activity log, as the log's benchmarks and tests of size store them."""

from __future__ import annotations

import json
import random

STARTED_MS = 1_763_800_000_000
VERBS = ("view", "click", "buy", "search")


def entries(count: int, seed: int = 7) -> list[bytes]:
    """Return so many entries: JSON of 100 bytes on average, of which about a tenth is chance."""
    rng = random.Random(seed)
    at, made = STARTED_MS, []
    for _ in range(count):
        at += rng.randrange(20)
        event = {
            "at": at,
            "user": f"u{rng.randrange(100_000):05d}",
            "session": f"{rng.getrandbits(32):08x}",
            "verb": rng.choice(VERBS),
            "page": f"/item/{rng.randrange(10_000)}",
            "ms": rng.randrange(400),
        }
        made.append(json.dumps(event, separators=(",", ":")).encode())
    return made
