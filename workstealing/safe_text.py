"""Text for people: names from elsewhere, numbers and times; durations are spelled in `clock`."""

from __future__ import annotations

import datetime as dt
import math
import re
import unicodedata
from typing import Any

from workstealing.clock import UNKNOWN

LONGEST_SHOWN = 120
_MOST_MARKS = 4
_PLAIN = re.compile(r"[ -~]*").fullmatch


def visible(text: Any, longest: int = LONGEST_SHOWN) -> str:
    """Return a name from elsewhere as text of bounded length, with invisible characters as escapes.

    Escaped are control characters, line ends, characters that turn the direction of writing, and
    marks piled up on one letter.
    """
    if isinstance(text, bytes):
        text = text[: 4 * longest + 4].decode("utf-8", "backslashreplace")
    shown = str(text)
    cut = shown[:longest]
    if _PLAIN(cut):
        return cut + ("…" if len(shown) > longest else "")
    plain, marks = "", 0
    for each in cut:
        # A script may need a few marks on one letter; a tower of them hides the lines above.
        marks = marks + 1 if unicodedata.category(each) in {"Mn", "Me"} else 0
        spell_out = _is_invisible(each) or marks > _MOST_MARKS
        plain += each.encode("unicode_escape").decode("ascii") if spell_out else each
    return plain + ("…" if len(shown) > longest else "")


def _is_invisible(character: str) -> bool:
    category = unicodedata.category(character)
    return category in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def number(value: float | None) -> str:
    """Return a figure with three significant digits, and with k, M or G if it is large."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{value / scale:.3g} {unit}" if value / scale < 1000 else f"{value:.3g}"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def rate_text(rate: float | None) -> str:
    """Return a rate as the number that a person would type."""
    return UNKNOWN if rate is None else f"{rate:.4g}"


def time_text(epoch: float | None, form: str = "%H:%M:%S UTC") -> str:
    """Return a time of day in UTC; form: as of strftime."""
    if epoch is None:
        return UNKNOWN
    try:
        return dt.datetime.fromtimestamp(epoch, dt.UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return UNKNOWN
