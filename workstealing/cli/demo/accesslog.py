"""Reading the requests out of a web server's access log."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

from workstealing.cli.demo.traffic import Request
from workstealing.errors import ConfigurationError

# What one run can send at most, and more than one needs to know.
MOST_REQUESTS = 200_000
LONGEST_TARGET = 2_000
_GZIP = b"\x1f\x8b"
# host ident user [time] "method target protocol" status bytes; the combined format goes on.
_LINE = re.compile(
    r'\S+ \S+ .*?\[[^\]]+\] "(?P<method>[A-Z]+) (?P<target>.+?)(?: HTTP/[\d.]+)?"'
    r" (?P<status>\d{3}) (?:\d+|-)(?: |$)"
)
# Printable ASCII that may stand in a request line as it is.
_SAFE = "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~"


def read_access_log(path: Path) -> list[Request]:
    """Return the requests of an access log, in its order.

    Arguments: path of a file in common or combined format, gzipped or not. Returns: at most
    MOST_REQUESTS; a line with status 304 becomes a conditional request, and lines without a path
    (`OPTIONS *`, garbled ones) are left out. Raises: ConfigurationError if the file cannot be read,
    is empty, or fewer than half of its lines are an access log's.
    """
    requests: list[Request] = []
    lines = matching = 0
    try:
        for line in _lines(path):
            if not line.strip():
                continue
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
    with path.open("rb") as file:
        start = file.read(2)
    with ExitStack() as stack:
        raw_file = stack.enter_context(path.open("rb"))
        # By its first bytes, not its name: rotated logs bear all kinds of names.
        is_gzip = start == _GZIP
        log = stack.enter_context(gzip.open(raw_file, "rb")) if is_gzip else raw_file
        # A bound on each line, so that a large file without line ends is not read as one line.
        while raw := log.readline(65_536):
            yield raw.decode("utf-8", "replace")


def _target(text: str) -> str | None:
    """Return the path and query of a logged request as they may be sent; None without a path."""
    if "://" in text.partition("?")[0]:
        parts = urlsplit(text)
        text = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not text.startswith("/"):
        return None
    target = quote(text.partition("#")[0], safe=_SAFE)
    return target if len(target) <= LONGEST_TARGET else None
