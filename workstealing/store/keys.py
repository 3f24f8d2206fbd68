"""Hash slots and the tags that put a key of ours into the slot of a key of the user's.

User keys may hold any braces, so a side key cannot simply repeat the user's own hash tag. Every
side key therefore begins with a short tag from a fixed table, one per slot: ``{tag}:...``.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from importlib.resources import files

from redis.exceptions import DataError

from workstealing.errors import ConfigurationError, CrossSlotError

SLOTS = 16384
_SLOT_BITS = 14
# The tag at index s, in braces, has the hash slot s. The table is part of the data layout and never
# changes: for each slot the first word over 0-9a-z, shorter words first, then in order. It is
# shipped, because working it out takes longer than a slice does.
SLOT_TAGS = tuple(files(__package__).joinpath("slot_tags.txt").read_bytes().split())


def to_bytes(key: str | bytes | bytearray | float | memoryview) -> bytes:
    """Return a key as the bytes that redis-py would send (UTF-8 for text).

    Errors: redis.exceptions.DataError for what redis-py would not send, and for text that has no
    UTF-8, half of a surrogate pair.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"the name {key!r} cannot be written in UTF-8: give its bytes, or another text"
            ) from error
    if isinstance(key, memoryview | bytearray):
        return bytes(key)
    if isinstance(key, int | float) and not isinstance(key, bool):
        return repr(key).encode()
    raise DataError(
        f"a name of type {type(key).__name__} was given: give text, bytes, an int or a float"
    )


def key_slot(key: bytes) -> int:
    """Return the hash slot of a key, 0 to 16383.

    Source: the Redis Cluster specification (CRC16/XMODEM of the part between the first ``{`` and
    the next ``}``, if that part is not empty, else of the whole key).
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def spread_tag(name: bytes, part: int) -> bytes:
    """Return the tag of one of up to 16,384 parts of a structure, each of which has its own slot.

    Arguments: name: the structure's; part: 0 and up. The first part lies in the slot of the name,
    the others as far from each other as can be, by counting with the bits reversed: no two share a
    slot, and however many there are, they are spread evenly over a cluster's nodes. Part of the
    layout of what uses it.
    """
    reversed_bits = int(f"{part:0{_SLOT_BITS}b}"[::-1], 2)
    return SLOT_TAGS[(key_slot(name) + reversed_bits) % SLOTS]


def require_one_slot(keys: tuple[bytes, ...]) -> int:
    """Return the hash slot that all the keys share.

    Arguments: the keys of one attempt or script, at least one. Errors: CrossSlotError naming the
    keys when they do not share a slot, on one server too, so that it is found before a cluster is.
    """
    if not keys:
        raise CrossSlotError("no keys were given: name at least one, whose slot decides the node")
    slots = {key_slot(key) for key in keys}
    if len(slots) != 1:
        names = ", ".join(repr(key) for key in keys)
        raise CrossSlotError(
            f"the keys {names} lie in {len(slots)} hash slots, but all keys of one attempt must"
            " share one: give them a common {tag}"
        )
    return slots.pop()


# The keys that stand beside users' own ones: see the catalogue in ``lua/README.md``.
_OWN = re.compile(
    rb"ws:[\w.-]+:(?:layout|slots)\Z|ws:(?:tracked|sharded_ick|time_shard_queue|spark):\w+:"
    rb"|\{[0-9a-z]{1,4}\}:ws:|(.+)/(?:ick|log|queue)/\{\1\}/",
    re.DOTALL,
)


def require_users_key(key: str | bytes | bytearray | float | memoryview) -> None:
    """Refuse a user's key that is one of this package's own, which a write would destroy.

    Arguments: key: as the user gives it. Errors: ConfigurationError that names it;
    redis.exceptions.DataError for what is no key.
    """
    # Nearly all keys end here: every command comes by.
    if isinstance(key, str) and "ws:" not in key and "}/" not in key:
        return
    raw = to_bytes(key)
    if b"ws:" not in raw and b"}/" not in raw:
        return
    if _OWN.match(raw):
        raise ConfigurationError(
            f"the key {key!r} is one of those that workstealing keeps beside its users' own: choose"
            " another"
        )


def require_users_name(name: bytes) -> None:
    """Refuse a name of a structure whose keys would be those of another structure.

    Errors: ConfigurationError that names it.
    """
    if name.startswith(b"ws:"):
        raise ConfigurationError(
            f"the name {name!r} begins as workstealing's own keys do: choose one without 'ws:' at"
            " its beginning"
        )
    require_users_key(name)
