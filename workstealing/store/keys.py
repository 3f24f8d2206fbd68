"""Hash slots, and the tags that put one of our keys into the slot of a user's key.

A user's key may hold any braces, so a side key cannot simply repeat the user's own hash tag. Every
side key therefore begins with a short tag from a fixed table, one per slot: ``{tag}:...``.
"""

from __future__ import annotations

import re
import zlib
from binascii import crc_hqx
from importlib.resources import files

from redis.exceptions import DataError

from workstealing.errors import ConfigurationError, CrossSlotError

SLOTS = 16384
_SLOT_BITS = 14
# The tag at index s, in braces, has the hash slot s. The table is part of the data layout and never
# changes: it holds for each slot the first word over 0-9a-z, shorter words first, then in order.
# The package ships it, because computing it takes longer than a slice does.
SLOT_TAGS = tuple(files(__package__).joinpath("slot_tags.txt").read_bytes().split())


def to_bytes(key: str | bytes | bytearray | float | memoryview) -> bytes:
    """Return a key as the bytes that redis-py would send (UTF-8 for text).

    Raises: redis.exceptions.DataError for a type that redis-py would not send, and for text that
    UTF-8 cannot express (half of a surrogate pair).
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

    Source: the Redis Cluster specification. The slot is the CRC16/XMODEM of the part between the
    first ``{`` and the next ``}``, if that part is not empty, else of the whole key.
    """
    start = key.find(b"{")
    if start >= 0:
        end = key.find(b"}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def is_in_share(key: bytes, share: int, shares: int) -> bool:
    """Say whether a key belongs to a share of all keys: its checksum modulo `shares` says which."""
    return zlib.crc32(key) % shares == share


def spread_tag(name: bytes, part: int) -> bytes:
    """Return the tag of one of up to 16,384 parts of a structure; each part has its own slot.

    Arguments:
        name: the structure's.
        part: its number, from 0.

    The first part lies in the slot of the name. The other parts lie as far from each other as
    possible, because the number's bits are reversed: no two share a slot, and any number of parts
    is spread evenly over a cluster's nodes. The tags belong to the layout of every structure that
    uses them.
    """
    reversed_bits = int(f"{part:0{_SLOT_BITS}b}"[::-1], 2)
    return SLOT_TAGS[(key_slot(name) + reversed_bits) % SLOTS]


def require_one_slot(keys: tuple[bytes, ...]) -> int:
    """Return the hash slot that all the keys share.

    Arguments:
        keys: those of one attempt or script, at least one.

    Raises: CrossSlotError, which names the keys, if they do not share a slot; on a single server
    too, so that tests without a cluster find the fault.
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


# Our keys that stand beside users' keys: see the catalogue in ``lua/README.md``.
_OWN = re.compile(
    rb"ws:[\w.-]+:(?:(?:layout|slots)\Z|adopt:)|ws:(?:tracked|sharded_ick|time_shard_queue|spark):\w+:"
    rb"|\{[0-9a-z]{1,4}\}:ws:|(.+)/(?:fair|ick|log|queue)/\{\1\}/",
    re.DOTALL,
)


def require_users_key(key: str | bytes | bytearray | float | memoryview) -> None:
    """Refuse a user's key that is one of this package's own, which a write would destroy.

    Arguments:
        key: as the user gives it.

    Raises: ConfigurationError, which names it; redis.exceptions.DataError for a value that is no
    key.
    """
    # Every command passes here, and nearly all keys end here.
    if isinstance(key, str) and "ws:" not in key and "}/" not in key:
        return
    raw = to_bytes(key)
    if b"ws:" not in raw and b"}/" not in raw:
        return
    if _OWN.match(raw):
        raise ConfigurationError(
            f"the key {key!r} is one of workstealing's own keys: choose another one"
        )


def require_users_name(name: bytes) -> None:
    """Refuse a structure's name if its keys would be those of another structure.

    Raises: ConfigurationError, which names it.
    """
    if name.startswith(b"ws:"):
        raise ConfigurationError(
            f"the name {name!r} begins like workstealing's own keys: choose a name that does not"
            " begin with 'ws:'"
        )
    require_users_key(name)
