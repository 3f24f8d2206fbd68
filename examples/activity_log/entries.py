"""The entries: what the site writes of a request, made up for the past, or out of an access log."""

from __future__ import annotations

import gzip
import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from workstealing.errors import ConfigurationError

Entry = dict[str, Any]

PAGES = 400
_LIKE = "(KHTML, like Gecko)"
AGENTS = (
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 {_LIKE} Chrome/126.0.0.0",
    f"Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1 {_LIKE} Safari/604",
    "Mozilla/5.0 (X11; Linux x86_64; rv:127.0) Gecko/20100101 Firefox/127.0",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
)
REFERRERS = ("-", "https://search.example/", "https://news.example/today", "https://shop.example/")
_POPULAR = list(accumulate(1 / rank for rank in range(1, PAGES + 1)))
# host ident user [time] "method path protocol" status bytes "referrer" "agent"
_LINE = re.compile(
    r'(\S+) \S+ .*?\[([^\]]+)\] "([A-Z]+) (\S+)[^"]*" (\d{3}) (\d+|-)(?: "([^"]*)" "([^"]*)")?'
)


class Visit(NamedTuple):
    """A request that somebody makes; `again`: he has the page, and asks whether it has changed."""

    path: str
    host: str
    referrer: str
    agent: str
    again: bool


def visit(chance: random.Random) -> Visit:
    """Make up a request: few pages are popular, and some ask for what fails."""
    which = chance.random()
    if which < 0.02:
        path = "/export"
    elif which < 0.04:
        path = f"/page/{PAGES + chance.randrange(1000)}"
    else:
        (page,) = chance.choices(range(1, PAGES + 1), cum_weights=_POPULAR)
        path = f"/page/{page}"
    return Visit(
        path,
        f"198.51.{chance.randrange(100)}.{chance.randrange(256)}",
        chance.choice(REFERRERS),
        chance.choice(AGENTS),
        chance.random() < 0.4,
    )


def entry(at: datetime, seen: Visit, status: int, length: int, ms: float) -> Entry:
    """Return what the log keeps of a request."""
    return {
        "at": at.astimezone(UTC).isoformat(timespec="milliseconds"),
        "host": seen.host,
        "method": "GET",
        "path": seen.path,
        "status": status,
        "bytes": length,
        "ms": round(ms, 2),
        "referrer": seen.referrer,
        "agent": seen.agent,
    }


def made_up_past(number: int, end: datetime, minutes: int = 30) -> Iterator[Entry]:
    """Yield the entries of the minutes before the end, in waves."""
    chance = random.Random(11)
    for place in range(number):
        seen = visit(chance)
        status = 404 if seen.path.startswith("/page/") and int(seen.path[6:]) > PAGES else 200
        if seen.path == "/export":
            status = chance.choice((200, 503))
        elif seen.again and status == 200:
            status = 304
        length = 0 if status == 304 else chance.randrange(600, 60_000)
        passed = place / number
        before = timedelta(minutes=minutes) * (1 - passed - 0.03 * math.sin(12 * passed))
        yield entry(end - before, seen, status, length, chance.expovariate(0.2))


def of_access_log(path: Path) -> Iterator[Entry]:
    """Yield the entries of a web server's access log, gzipped or not, in its order.

    Lines that are no requests are left out. Errors: ConfigurationError if there is no other line,
    or the file cannot be read.
    """
    found = 0
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if is_gzip else path.open("rb") as file:
            for line in file:
                match = _LINE.match(line.decode("utf-8", "replace"))
                if match is None:
                    continue
                host, at, method, target, status, length, referrer, agent = match.groups("-")
                when = datetime.strptime(at, "%d/%b/%Y:%H:%M:%S %z")
                seen = Visit(target, host, referrer, agent, status == "304")
                found += 1
                made = entry(when, seen, int(status), int(length.replace("-", "0")), 0)
                yield {**made, "method": method}
    except (OSError, EOFError, ValueError) as error:
        raise ConfigurationError(
            f"{str(path)!r} cannot be read as an access log: {error}"
        ) from None
    if not found:
        raise ConfigurationError(f"{str(path)!r} is no access log: no line of it is a request")
