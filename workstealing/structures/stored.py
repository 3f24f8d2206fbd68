"""Numbers and texts that stand under keys of ours: bounded before they are believed.

Another program, a person or a damaged backup may have written anything there. A number that is too
large would make a loop endless, and a list as long as memory. To prevent both, each field has its
bounds, and any value outside of its bounds is a LayoutError. ``lua/shared/stored.lua`` has the same
rule for scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from workstealing.errors import LayoutError

MOST_STORED = 2**53 - 1
"""The largest whole number that every reader, Lua among them, reads exactly."""
_SHOWN = 60
# As Redis writes one: no sign but a minus, no leading zero; no bound has more digits.
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,15}")
ADVICE = ": restore the key from a backup, or remove it if its content is not needed"


def stored_number(
    key: bytes, field: str, value: Any, least: int = 0, most: int = MOST_STORED
) -> int:
    """Return a whole number that was read from a key of ours.

    Arguments:
        field: what it is, as a message names it.
        value: as a client of redis-py gives it, bytes, text or a number.
        least: its bounds.
        most: its bounds.

    Raises: LayoutError for anything else.
    """
    text = value if isinstance(value, str) else _text_of(value)
    if _WHOLE.fullmatch(text):
        number = int(text)
        if least <= number <= most:
            return number
    raise unbelieved(key, field, value, f"a whole number from {least} to {most}")


def unbelieved(key: bytes, field: str, value: Any, expected: str) -> LayoutError:
    """Return the error about a value that cannot be believed.

    Arguments as of `stored_number`; expected: what was expected in its place.
    """
    shown = "nothing" if value is None else repr(_text_of(value)[:_SHOWN])
    return LayoutError(
        f"the key {key.decode(errors='backslashreplace')} says {shown} as {field} where {expected}"
        f" was expected{ADVICE}; nothing was changed"
    )


def wrong_type(base: bytes, error: ResponseError) -> Exception:
    """Return the LayoutError for a key of another type, or else the error itself.

    Arguments:
        base: the beginning of the keys that were asked.
        error: the server's.
    """
    # A pipeline says first which of its commands it was.
    if "WRONGTYPE " not in str(error):
        return error
    return LayoutError(
        f"one of the keys {base.decode(errors='backslashreplace')}* holds another type than it"
        f" should{ADVICE}; nothing was changed"
    )


@contextmanager
def holding_ours(base: bytes) -> Iterator[None]:
    """Ask keys of ours, which hold something of their own type. Raises: as `wrong_type` returns."""
    try:
        yield
    except ResponseError as error:
        raise wrong_type(base, error) from None


def _text_of(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float) and value.is_integer():
        # A client with RESP3 gives scores so.
        return f"{value:.0f}"
    return str(value)
