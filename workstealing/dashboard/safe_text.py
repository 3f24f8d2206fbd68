"""Names and payloads from elsewhere: as safe text on a page, and as keys of its forms."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Mapping
from itertools import islice
from typing import Any

from workstealing.dashboard.watched import short_id

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
