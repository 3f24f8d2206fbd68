"""Which streams a tenant writes to, and in which turns a group's streams are read.

The choice of a tenant's streams says the probability that two tenants share theirs. The turns are
those that a process knows: a plan, and a view of the ring with the delays of its pickups. The
module `reading` says how turns and rings are used.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from math import comb

from redis.exceptions import DataError

from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.structures.shuffle_queue.names import MOST_STREAMS, GroupNames

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


def checked_tenant(tenant: object, called: str = "tenant") -> bytes:
    """Return a tenant as bytes, or a name that is called otherwise.

    Raises: ConfigurationError for anything but text or bytes.
    """
    if isinstance(tenant, str | bytes):
        try:
            return to_bytes(tenant)
        except DataError:
            pass
    raise ConfigurationError(
        f"the {called} {tenant!r} is not usable: give a text that UTF-8 can write, or bytes"
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


LEAST_WINDOW = 2
"""So many of the streams that come next are passed at least."""
MOST_DELAYS = 64
"""Once there are so many pickup delays, a read uses the script that counts them."""
# A plan's name, the stream served before it, and two of its streams at least, all below 4,096.
_STREAM = r" (?:[0-3]?[0-9]{1,3}|40[0-8][0-9]|409[0-5])"
_TURNS = re.compile(rf"\S+ -1(?:{_STREAM})+|\S+(?:{_STREAM}){{2,}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Turns:
    """A plan of a group's turns, as the last full read left it: numbers of streams, as texts.

    Fields: name: of the plan, by which the queue knows its current plan; after: stream -> the
    stream served after it; end: the stream with which the next plan begins, None if this one goes
    round.
    """

    name: str
    after: dict[str, str]
    end: str | None

    @classmethod
    def of(cls, text: str) -> Turns | None:
        """Return the turns of a text: its name, the stream served before it, and its streams.

        None for any other text: then a full look makes a plan anew.
        """
        if not _TURNS.fullmatch(text):
            return None
        name, *turns = text.split()
        end = None if turns[-1] in turns[1:-1] else turns[-1]
        if end is not None:
            turns.pop()
        return cls(name, dict(pairwise(turns)), end)

    def following(self, last: str, most: int) -> tuple[str, ...]:
        """Return at most so many streams that this plan serves after a stream, each once."""
        found: list[str] = []
        number = self.after.get(last)
        while number is not None and len(found) < most and number not in found[:1]:
            found.append(number)
            number = self.after.get(number)
        return tuple(found)


class PickupDelays:
    """Pickup delays in ms of messages that the usual read has served; threads may share it."""

    __slots__ = ("_delays", "add")

    def __init__(self) -> None:
        # Appending and taking one are whole for every thread.
        self._delays: deque[int] = deque()
        self.add = self._delays.append

    @property
    def is_full(self) -> bool:
        """Whether the delays must be sent to the server before more come."""
        return len(self._delays) >= MOST_DELAYS

    def take(self) -> str:
        """Return the delays as a text of `top:how many`, and forget the delays.

        A top is the power of two under which the histogram counts a delay, so the server works on a
        few numbers for many delays.
        """
        tops: Counter[int] = Counter()
        while self._delays:
            try:
                tops[1 << max(0, self._delays.popleft() - 1).bit_length()] += 1
            except IndexError:
                # Another thread has taken the last one.
                break
        return " ".join(f"{top}:{count}" for top, count in tops.items())

    def put_back(self, taken: str) -> None:
        """Take back pickup delays that the server has not counted."""
        for counted in taken.split():
            top, count = map(int, counted.split(":"))
            self._delays.extend([top] * count)


@dataclass(slots=True)
class View:
    """The knowledge of this process about one group: a guess that only saves round trips.

    Fields: names: of the group's keys; fixed: the keys that every read passes; text: the group's
    name; heads: numbers of the streams that are expected next; window: how many of them are passed;
    plan: of the next turns, if there is one; last: the number of the stream that was served last,
    as a text; span: how many streams there are; delays: pickup delays to be counted; hits: reads
    since the window was changed; fresh: whether the last reply gave the heads; is_short: whether
    the ring was shorter than the window; announced: consumer -> when it was last announced, by this
    process's clock.
    """

    names: GroupNames
    fixed: tuple[bytes, ...]
    text: str
    heads: tuple[int, ...]
    span: int
    delays: PickupDelays
    plan: Turns | None = None
    last: str = ""
    window: int = LEAST_WINDOW
    hits: int = 0
    fresh: bool = False
    is_short: bool = True
    announced: dict[str | bytes, float] = field(default_factory=dict)
