"""The traffic of the demo, made up or out of an access log, and the rate that it calls for."""

from __future__ import annotations

import gzip
import itertools
import random
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from workstealing.errors import ConfigurationError

# One run cannot send more of a log, and needs no more.
MOST_REQUESTS = 200_000
LONGEST_TARGET = 2_000
# host ident user [time] "method target protocol" status bytes; the combined format goes on.
_LINE = re.compile(
    r'\S+ \S+ .*?\[[^\]]+\] "(?P<method>[A-Z]+) (?P<target>.+?)(?: HTTP/[\d.]+)?"'
    r" (?P<status>\d{3}) (?:\d+|-)(?: |$)"
)
# Printable ASCII that may stand in a request line as it is.
_SAFE = "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~"

# How long each part of an item lives: seconds in real life, and a share of the demo's run, so that
# most fields expire while it runs.
PARTS = {"content": (12 * 3600.0, 0.3), "related": (3600.0, 0.15), "likes": (300.0, 0.05)}
LIMIT = 25
# Slices are rarely full: many hashes have one expired field only, and time may run out first.
SAFETY = 3.0
HIGHEST_RATE = 0.5


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its target, and whether it sends the ETag of the last answer for the target."""

    target: str
    conditional: bool = False


def zipf_requests(
    count: int, *, seed: int = 2, popular: int = 400, exponent: float = 1.1, once: float = 0.15
) -> list[Request]:
    """Return requests for Zipf-distributed items with a long tail that is visited once.

    Arguments:
        popular: how many items are visited again and again, the one at rank r with weight r **
            -exponent.
        once: the share of requests for an item that nobody else asks for.

    A quarter of them show an ETag. The same arguments give the same requests.
    """
    chance = random.Random(seed)
    bounds = list(itertools.accumulate(rank**-exponent for rank in range(1, popular + 1)))
    ranks = chance.choices(range(1, popular + 1), cum_weights=bounds, k=count)
    requests = []
    for number, rank in enumerate(ranks):
        target = f"/item/once-{number}" if chance.random() < once else f"/item/{rank}"
        requests.append(Request(target, conditional=chance.random() < 0.25))
    return requests


def read_access_log(path: Path) -> list[Request]:
    """Return the requests of an access log, in its order.

    Arguments:
        path: of a file in common or combined format, gzipped or not.

    Returns: at most MOST_REQUESTS; a line with status 304 becomes a conditional request, and lines
    without a path (`OPTIONS *`, garbled ones) are left out. Raises: ConfigurationError if the file
    cannot be read, is empty, or fewer than half of its lines are an access log's.
    """
    requests: list[Request] = []
    lines = matching = 0
    try:
        for line in filter(str.strip, _lines(path)):
            lines += 1
            match = _LINE.match(line)
            if match is None:
                continue
            matching += 1
            target = _target(match["target"])
            if target is not None:
                requests.append(Request(target, conditional=match["status"] == "304"))
            if len(requests) >= MOST_REQUESTS:
                break
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"the access log {str(path)!r} cannot be read: {reason}") from None
    if not requests or matching * 2 < lines:
        raise ConfigurationError(
            f"{str(path)!r} is no access log: {matching} of its {lines} lines are in common or"
            " combined format; give a web server's access log"
        )
    return requests


def _lines(path: Path) -> Iterator[str]:
    # By its first bytes, not its name: rotated logs bear all kinds of names.
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    with gzip.open(path) if is_gzip else path.open("rb") as log:
        # A bound on each line, so that a large file without line ends is not read as one line.
        while line := log.readline(65_536):
            yield line.decode("utf-8", "replace")


def _target(text: str) -> str | None:
    """Return the path and query of a logged request as they may be sent; None without a path."""
    if "://" in text.partition("?")[0]:
        parts = urlsplit(text)
        text = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not text.startswith("/"):
        return None
    target = quote(text.partition("#")[0], safe=_SAFE)
    return target if len(target) <= LONGEST_TARGET else None


def lifetimes(seconds: float) -> dict[str, int]:
    """Return the time to live of each part, in milliseconds, for a run of that many seconds."""
    return {part: round(1000 * min(most, of * seconds)) for part, (most, of) in PARTS.items()}


def forecast(
    requests: Sequence[Request], pace: float, lives: Mapping[str, int]
) -> tuple[float, float]:
    """Walk through the traffic once, as the app will, and count.

    Arguments:
        pace: how many are sent a second.
        lives: the parts' times to live in milliseconds.

    Returns: how many enlist, and how many fields expire, a second. O(requests).
    """
    deadlines: dict[str, dict[str, float]] = {}
    enlisted = expiring = 0
    end = len(requests) / pace
    for number, request in enumerate(requests):
        now = number / pace
        seen = deadlines.get(request.target)
        if seen is None:
            seen = deadlines[request.target] = {}
            enlisted -= request.conditional
        missing = [part for part in lives if seen.get(part, 0.0) <= now]
        enlisted += request.conditional or not missing
        for part in missing:
            seen[part] = now + lives[part] / 1000
            expiring += seen[part] <= end
    return enlisted / end, expiring / end


def rate_for(enlisted: float, garbage: float) -> tuple[float, str]:
    """Return the rate at which slices keep up with the garbage, SAFETY times over.

    Both arguments are a second's, as `forecast` returns them. Returns: the rate, at most
    HIGHEST_RATE, and the formula with its numbers.
    """
    rate = HIGHEST_RATE if garbage else 0.001
    if enlisted and garbage:
        rate = min(rate, SAFETY * garbage / (enlisted * LIMIT))
    return rate, (
        f"rate = {SAFETY:g} x inflow / (enlisted x limit) = {SAFETY:g} x {garbage:.0f} fields/s"
        f" / ({enlisted:.0f}/s x {LIMIT} fields) = {rate:.4f}"
    )
