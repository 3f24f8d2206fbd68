"""The choice of a tenant's streams, and the probability that two tenants share theirs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from math import comb

from redis.exceptions import DataError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.structures.shuffle_queue.names import MOST_STREAMS

_REMEMBERED = 8192
_WORD = 8
_MASK = (1 << 64) - 1


def streams_of(tenant: str | bytes, streams: int, streams_per_tenant: int) -> tuple[int, ...]:
    """Choose a tenant's streams: always the same ones, on every platform and in every Python.

    Arguments:
        tenant: a text (read as UTF-8) or bytes.
        streams: how many there are, 1 to 4,096.
        streams_per_tenant: how many of them the tenant has, 1 to `streams`.

    Returns: so many different numbers in 0..streams-1, in the order of choice, which is the order
    in which a write looks at them; every selection is as likely as any other. Raises:
    ConfigurationError. No Redis command; about 20 us for four streams, and then remembered for the
    last 8,192 tenants.

    The algorithm is a part of the layout, and other languages can follow it. A round number follows
    the tenant's bytes (from 0; four bytes, the highest first). The SHA-256 digest of both is cut
    into four words of 64 bits (the highest byte first). Rounds go on as long as words are needed.
    Each word is mapped to a stream by the jump consistent hash of Lamping and Veach (2014), in
    whole numbers. A stream that was chosen already is passed over. So most tenants keep most of
    their streams when the number of streams changes: growing from n to m moves a share of 1 - n/m
    of the choices, to new streams.
    """
    checked_streams(streams, streams_per_tenant)
    return _chosen(checked_tenant(tenant), streams, streams_per_tenant)


def overlap_probability(streams: int, streams_per_tenant: int, at_least: int = 1) -> float:
    """Return the probability that two tenants share at least so many streams.

    Arguments:
        streams: as in `streams_of`.
        streams_per_tenant: as in `streams_of`.
        at_least: 0 to streams_per_tenant.

    Returns: the tail of the hypergeometric distribution, computed in whole numbers and rounded
    once. Raises: ConfigurationError. No Redis command.
    """
    checked_streams(streams, streams_per_tenant)
    if not _is_number(at_least, 0, streams_per_tenant):
        raise ConfigurationError(
            f"at_least={at_least!r} is no number of streams that two tenants could share: give 0"
            f" to streams_per_tenant, which is {streams_per_tenant}"
        )
    others = streams - streams_per_tenant
    ways = sum(
        comb(streams_per_tenant, shared) * comb(others, streams_per_tenant - shared)
        for shared in range(at_least, streams_per_tenant + 1)
    )
    return ways / comb(streams, streams_per_tenant)


def checked_streams(streams: object, streams_per_tenant: object) -> None:
    """Check both numbers. Raises: ConfigurationError, which names the possible values."""
    if not _is_number(streams, 1, MOST_STREAMS):
        raise ConfigurationError(
            f"streams={streams!r} is no number of streams: give 1 to {MOST_STREAMS}"
        )
    if not _is_number(streams_per_tenant, 1, streams):
        raise ConfigurationError(
            f"streams_per_tenant={streams_per_tenant!r} is no number of streams of one tenant: give"
            f" 1 to streams, which is {streams}"
        )


def checked_tenant(tenant: object) -> bytes:
    """Return a tenant as bytes. Raises: ConfigurationError for anything but text or bytes."""
    if isinstance(tenant, str | bytes):
        try:
            return to_bytes(tenant)
        except DataError:
            pass
    raise ConfigurationError(
        f"the tenant {tenant!r} is not usable: give a text that UTF-8 can write, or bytes"
    )


def _is_number(value: object, low: int, high: object) -> bool:
    return (
        isinstance(value, int)
        and isinstance(high, int)
        and not isinstance(value, bool)
        and low <= value <= high
    )


@lru_cache(_REMEMBERED)
def _chosen(tenant: bytes, streams: int, streams_per_tenant: int) -> tuple[int, ...]:
    # A dict keeps the order of choice, and has each stream once.
    chosen: dict[int, None] = {}
    for word in _words(tenant):
        chosen.setdefault(_jump(word, streams))
        if len(chosen) == streams_per_tenant:
            break
    return tuple(chosen)


def _words(tenant: bytes) -> Iterator[int]:
    start, turn = sha256(tenant), 0
    while True:
        hashed = start.copy()
        hashed.update(turn.to_bytes(4, "big"))
        digest = hashed.digest()
        for at in range(0, len(digest), _WORD):
            yield int.from_bytes(digest[at : at + _WORD], "big")
        turn += 1


def _jump(word: int, streams: int) -> int:
    stream, following = 0, 0
    while following < streams:
        stream = following
        word = (word * 2862933555777941757 + 1) & _MASK
        # Whole numbers throughout: no two platforms can round differently.
        following = ((stream + 1) << 31) // ((word >> 33) + 1)
    return stream
