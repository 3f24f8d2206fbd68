"""The one list of what emulated hashes answer otherwise than Redis 8 does.

tests/structures/volatile_hashes/test_parity.py allows these differences and no other;
docs/volatile_hashes.md shows the same table (`as_table`), and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

GARBAGE = "expired fields that the server has not collected yet"
KEPT_GARBAGE = "KEEPTTL on such a field"
FOREIGN = "a key that holds no hash"
TWO_ERRORS = "a call that is wrong in two ways"


@dataclass(frozen=True)
class Difference:
    """Commands that, in a situation, are answered otherwise here than by Redis 8."""

    situation: str
    commands: tuple[str, ...]
    redis8: str
    here: str


_EXPIRES = ("expire", "pexpire", "expireat", "pexpireat")
_FIELD_EXPIRES = tuple(f"h{name}" for name in _EXPIRES)
_MOVES = ("persist", "rename", "renamenx", "copy")

DIFFERENCES = (
    Difference(
        GARBAGE,
        ("hlen", "exists", "delete", "unlink", "hdel", "hset"),
        "counts them as if they were there (a field written over is not new)",
        "counts live fields alone",
    ),
    Difference(
        GARBAGE,
        _FIELD_EXPIRES,
        "says 2 (deleted) for an expired field whose new time has passed too",
        "says -2 (no such field)",
    ),
    Difference(
        GARBAGE,
        ("ttl", "pttl", "expiretime", "pexpiretime", *_EXPIRES, *_MOVES),
        "takes a hash without a live field for an existing key",
        "takes it for a missing key, and its own time to live has ended with it",
    ),
    Difference(
        GARBAGE,
        ("hscan",),
        "refuses an unusable count for a hash without a live field",
        "takes it for a missing key, for which no count is read",
    ),
    Difference(
        KEPT_GARBAGE,
        ("hsetex",),
        "keeps the time that has passed, so the new value is gone at once",
        "writes it without a time to live",
    ),
    Difference(
        FOREIGN,
        ("delete", "unlink", *_EXPIRES, *_MOVES),
        "does it to any type",
        "refuses the source with WRONGTYPE and changes nothing",
    ),
    Difference(
        TWO_ERRORS,
        ("hincrby", "hincrbyfloat", "hgetex", "hsetex", "hrandfield", "hscan", *_FIELD_EXPIRES),
        "reports one of the two errors",
        "may report the other",
    ),
)


def as_table() -> str:
    """Return the list as a Markdown table."""
    lines = ["| with | commands | Redis 8 | here |", "|---|---|---|---|"]
    lines += [
        f"| {d.situation} | {', '.join(f'`{c}`' for c in d.commands)} | {d.redis8} | {d.here} |"
        for d in DIFFERENCES
    ]
    return "\n".join(lines)


def is_allowed(command: str, situations: set[str]) -> bool:
    """Say whether the list allows a command another answer in one of these situations."""
    return any(command in d.commands and d.situation in situations for d in DIFFERENCES)
