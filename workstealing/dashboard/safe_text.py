"""What a page shows as text: names and payloads from elsewhere, numbers, durations and times."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import unicodedata
from collections.abc import Mapping
from itertools import islice
from typing import Any

from workstealing.dashboard.watched import short_id

UNKNOWN = "\N{EN DASH}"
LONGEST_SHOWN = 120
LONGEST_PAYLOAD = 300
"""How many characters of a payload a page shows."""

_EXACT_BYTES = 192
# A user's structure may hold text, and tells text from bytes.
_KINDS: dict[type, str] = {bytes: "is", str: "says"}
_MOST_MARKS = 4
_PLAIN = re.compile(r"[ -~]*").fullmatch
_MOST_FIELDS = 20


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


def payload_text(payload: Any) -> str:
    """Return a payload as `visible` text: fields as `name=value, ...`, and the size if it is cut.

    It reads no more of the payload than it shows. A value without a text is named by its type.
    """
    if payload is None:
        return ""
    if isinstance(payload, Mapping):
        shown, left = [], LONGEST_PAYLOAD
        for name, value in islice(payload.items(), _MOST_FIELDS):
            if left <= 0:
                break
            shown.append(f"{visible(name, min(40, left))}={_value_text(value, left)}")
            left -= len(shown[-1])
        return ", ".join(shown) + (", …" if len(shown) < len(payload) else "")
    return _value_text(payload, LONGEST_PAYLOAD)


def _value_text(value: Any, longest: int) -> str:
    try:
        text = value if isinstance(value, bytes) else str(value)
    except Exception:  # noqa: BLE001 - whatever an object of the user's does
        return f"a {type(value).__name__}"
    shown = visible(text, longest)
    if not shown.endswith("…") or len(text) <= longest:
        return shown
    return f"{shown} ({_length(text)})"


def _length(text: bytes | str) -> str:
    length = len(text)
    if isinstance(text, str):
        return f"{length:,} characters"
    for limit, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if length >= limit:
            return f"{length / limit:.3g} {unit}"
    return f"{length} bytes"


def weight(thing: Any) -> int:
    """Return about how many bytes a payload holds."""
    if isinstance(thing, bytes | str):
        return len(thing)
    if isinstance(thing, Mapping):
        return sum(weight(name) + weight(value) for name, value in thing.items())
    if isinstance(thing, list | tuple):
        return sum(map(weight, thing))
    return 8


def item_key(member: Any) -> str:
    """Return a dead item's key in a form: the item itself if it is short, else its digest."""
    raw = member if isinstance(member, bytes) else str(member).encode("utf-8", "surrogatepass")
    kind = _KINDS.get(type(member))
    if kind is not None and len(raw) <= _EXACT_BYTES:
        return f"{kind}." + base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return "like." + short_id(raw)


def exact_item(key: str) -> bytes | str | None:
    """Return the item of a form's key, or None if the key is a digest or malformed."""
    kind, _, encoded = key.partition(".")
    if kind not in _KINDS.values() or len(encoded) > 2 * _EXACT_BYTES:
        return None
    try:
        raw = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        return raw if kind == _KINDS[bytes] else raw.decode("utf-8", "surrogatepass")
    except ValueError:
        return None


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


def duration(seconds: float | None) -> str:
    """Return seconds as people say them."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds <= 0:
        return "0 s"
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.3g} min"
    return f"{seconds / 3600:.3g} h" if seconds < 2 * 86400 else f"{seconds / 86400:,.3g} d"


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
