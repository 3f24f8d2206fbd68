"""Commands of a native namespace that are not simply the server's: ours, and Valkey's other ways.

Some commands are this package's own: each is a script on every backend. Some commands of Redis's
Valkey takes in another way, or passes on to its replicas in another way. No I/O.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.structures.volatile_hashes.server_faults import LAST_DEADLINE_MS

COUNT_EXISTING = "HINCRBYFXX"
"""A command of this package's own, HINCRBY of a field that exists: hash, field, amount, FXX.

The reply is the sum, or None: there is no such field.
"""
MOVE_FIELD = "HMOVEFIELD"
"""A command of this package's own: hash, other hash, FIELDS, 2, field, its new name.

It moves a field with its deadline, and ends the lease of the computer of the new one. The reply is
1, or 0: there is no such field.
"""
LOOK = "HLOOK"
"""A command of this package's own: hash, FIELDS, 1, field. It reads a field and its time left.

The reply is a list: the value, or None; its milliseconds left, -1: for ever.
"""
LEASE, UNLEASE, STORE, FORGET = "HLEASE", "HUNLEASE", "HSTORE", "HFORGET"
"""Commands of this package's own, on the leases of those who compute fields: hash, FIELDS, ...

The scripts of `lua/volatile_hashes` (hlease, hunlease, hstore, hforget) say what follows, and the
replies. FORGET is HDEL and also ends the leases.
"""
LEASING = {LEASE: "HPTTL", UNLEASE: "", STORE: "HSETEX", FORGET: "HDEL"}
LEASING |= dict.fromkeys(("DEL", "UNLINK"), "NATIVE")
"""The server's own command that each needs where the server keeps the deadlines."""
OWN_COMMANDS = frozenset({COUNT_EXISTING, LOOK, MOVE_FIELD, *LEASING})
"""The commands that need a script on every backend."""
MISTREATED_NAMES = frozenset({b"nx", b"xx", b"fnx", b"fxx", b"fields"})
"""Names of hashes, in lower case, that Valkey 9 takes for options of HSETEX and HGETEX."""
MISREAD_NAMES = frozenset({b"fields"})
"""Those among them that it misreads with PXAT, too, as which it passes sums on to replicas."""

_TIMES_MS = {"EX": (1000, True), "PX": (1, True), "EXAT": (1000, False), "PXAT": (1, False)}
_SUMS = ("HINCRBY", "HINCRBYFLOAT", COUNT_EXISTING)


class _OnValkey(NamedTuple):
    """The arguments of a command that Valkey takes in another way than Redis.

    Fields: refused: names of hashes that it misreads; name: the place of such a name; deadline: the
    place of one; unit: its unit, as an option is called; has_options: whether such options stand
    before FIELDS; called: as which of the server's commands, "": by its own name.
    """

    refused: frozenset[bytes] = frozenset()
    name: int = 1
    deadline: int | None = None
    unit: str = ""
    has_options: bool = False
    called: str = ""


_ON_VALKEY = {
    **dict.fromkeys(("HSETEX", "HGETEX"), _OnValkey(MISTREATED_NAMES, has_options=True)),
    # Behind the field and the nonce; '' for no deadline.
    STORE: _OnValkey(MISTREATED_NAMES, deadline=6, unit="PX", called="HSETEX"),
    # It passes the sum of a field with a deadline on as HSETEX key PXAT.
    **dict.fromkeys(_SUMS, _OnValkey(MISREAD_NAMES)),
    MOVE_FIELD: _OnValkey(MISREAD_NAMES, name=2),
    "HEXPIRE": _OnValkey(deadline=2, unit="EX"),
    "HPEXPIRE": _OnValkey(deadline=2, unit="PX"),
    "HEXPIREAT": _OnValkey(deadline=2, unit="EXAT"),
    "HPEXPIREAT": _OnValkey(deadline=2, unit="PXAT"),
}
VALKEY_QUIRKS = frozenset(_ON_VALKEY)
"""The commands that `require_faithful` looks at."""


def require_faithful(args: Sequence[Any]) -> None:
    """Refuse a command of a native namespace that Valkey would do in another way than Redis.

    Raises: ConfigurationError for a name of a hash that it takes for an option, so that no replica
    hears of the write; ResponseError, as of Redis, for a deadline past the year 4199.
    """
    told = _ON_VALKEY[args[0]]
    word = told.called or args[0]
    if told.refused:
        _require_name(word, args[told.name], told.refused)
    if told.has_options:
        for option, given in pairwise(args[2 : args.index("FIELDS", 2)]):
            if option in _TIMES_MS:
                _require_deadline(word, option, given)
    if told.deadline is not None:
        _require_deadline(word, told.unit, args[told.deadline])


def _require_name(word: str, name: Any, refused: Collection[bytes]) -> None:
    if to_bytes(name).lower() in refused:
        raise ConfigurationError(
            f"Valkey takes the hash's name {name!r} for an option of {word}, and its"
            ' replicas miss the write: use another name, or backend="emulated"'
        )


def _require_deadline(word: str, unit: str, given: Any) -> None:
    ms, is_relative = _TIMES_MS[unit]
    try:
        amount = int(given)
    except (TypeError, ValueError, OverflowError):
        # The server's to refuse.
        return
    # The server's clock decides, and some seconds decide nothing in the year 4199.
    if amount * ms + (time.time_ns() // 1_000_000 if is_relative else 0) > LAST_DEADLINE_MS:
        raise ResponseError(f"invalid expire time in '{word.lower()}' command")
