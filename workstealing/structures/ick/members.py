"""Members of an Ick: their forms as arguments and as results, and the Ick's keys."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Self

from workstealing.clock import Duration, milliseconds_of
from workstealing.errors import ConfigurationError
from workstealing.store.keys import to_bytes
from workstealing.store.operations import Operation, Steps
from workstealing.store.scripts import load
from workstealing.structures.layout import beside, scored
from workstealing.structures.stored import MOST_STORED, unbelieved

MEMBERS_A_CHUNK = 1000
"""The most members that one script adds, acknowledges, reserves or lists: so none takes long."""
GRAVES_A_CHUNK = 500
"""The most dead members that one script revives or discards."""
TIMES_KEPT = 10
"""For so many stale reservations of a member the times are kept."""

Member = str | bytes
Score = int | float
Members = Mapping[Any, Any] | Iterable[Any]
Pairs = list[tuple[bytes, Any]]


class IckNames:
    """The keys of one Ick, redis-ick's own three first; see the catalogue in ``lua/README.md``."""

    def __init__(self, key: Member) -> None:
        self.version = to_bytes(key)
        prefix = beside(self.version, b"ick")
        self.pset, self.cset = prefix + b"pset", prefix + b"cset"
        self.held, self.attempts = prefix + b"held", prefix + b"attempts"
        self.seen, self.dead = prefix + b"seen", prefix + b"dead"
        self.waiting, self.terms = prefix + b"waiting", prefix + b"terms"
        self.sets = (self.version, self.pset, self.cset)
        self.reserved = (*self.sets, self.held, self.attempts)
        self.resting = (self.waiting, self.terms)
        self.buried = (*self.sets, self.dead)
        self.all = (*self.reserved, self.seen, self.dead, *self.resting)


class Added(NamedTuple):
    """How many members of an `add` are new, and how many got a lower score."""

    new: int
    changed: int


class Acked(int):
    """How many members an `ack` removed.

    Attribute `ignored`: how many it did not remove, because they were no longer reserved: a reaper
    has returned the reservation, or another consumer has reserved since.
    """

    ignored: int

    def __new__(cls, acked: int, ignored: int) -> Self:
        """Make the number that knows how many members were ignored."""
        made = super().__new__(cls, acked)
        made.ignored = ignored
        return made

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        """Return the arguments of a copy, in another process, too."""
        return int(self), self.ignored


class Batch(list[tuple[Any, float]]):
    """Reserved members with their scores, lowest first.

    Attributes: token: of the reservation, for `Ick.ack` from another process; acked: the result of
    the acknowledgement in an exchange.
    """

    token: str
    acked: Acked

    def __init__(self, pairs: Iterable[tuple[Any, float]], token: str, acked: Acked) -> None:
        super().__init__(pairs)
        self.token = token
        self.acked = acked

    @property
    def members(self) -> list[Any]:
        """The members without their scores."""
        return [member for member, _ in self]


class DeadMember(NamedTuple):
    """A member that was set aside.

    Fields: member; score: it goes back with it; attempts: how many of its reservations went stale;
    times: when a reaper found the last of these, in seconds since the epoch.
    """

    member: Any
    score: float
    attempts: int
    times: tuple[float, ...]


# Tuples, which isinstance() checks much faster than unions: every member comes by here.
_NAMES = (str, bytes)
_NUMBERS = (int, float)
_PLAIN_NUMBERS = frozenset(_NUMBERS)


def require_one(others: Sequence[object]) -> None:
    """Refuse redis-ick's order of arguments, score by score. Raises: ConfigurationError."""
    if others:
        raise ConfigurationError(
            "add() takes all members as one argument: give {member: score}, or pairs (member,"
            " score), and not redis-ick's add(score, member)"
        )


def checked_reservation(token: object) -> str:
    """Return a reservation's token. Raises: ConfigurationError for anything else."""
    if isinstance(token, str) and token.isascii():
        return token
    raise ConfigurationError(
        f"token={token!r} is none of a reservation: give the token of a Batch, or none"
    )


def pairs_of(members: Members | Member) -> Pairs:
    """Return members as pairs of bytes and a checked score, or None for the server's time.

    Raises: ConfigurationError for anything else.
    """
    if isinstance(members, _NAMES):
        members = (members,)
    items: Iterable[Any] = members.items() if isinstance(members, Mapping) else members
    if not isinstance(items, Iterable):
        raise ConfigurationError(
            f"members={members!r} cannot be added: give a member, several of them, pairs of a"
            " member and a score, or a dict of them"
        )
    pairs: Pairs = []
    for item in items:
        if isinstance(item, _NAMES):
            pairs.append((to_bytes(item), None))
            continue
        try:
            member, score = item
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"{item!r} cannot be added: give members, or pairs of a member and a score"
            ) from None
        if not isinstance(member, _NAMES):
            raise ConfigurationError(f"the member {member!r} is neither text nor bytes")
        pairs.append((to_bytes(member), None if score is None else _checked_score(member, score)))
    return pairs


def in_chunks(pairs: Pairs) -> Iterator[Pairs]:
    """Split pairs into chunks for one script each, those with the server's time apart.

    The order of adding matters only to members that are given more than once. Members that are
    given more than once keep their order, so the result is that of one call for each pair.
    """
    if len({member for member, _ in pairs}) == len(pairs):
        # In order of score: neighbours in a sorted set are quicker to add together.
        scored = [pair for pair in pairs if pair[1] is not None]
        runs = [scored, [pair for pair in pairs if pair[1] is None]]
        in_order = False
    else:
        runs = [list(run) for _, run in groupby(pairs, key=_is_timed)]
        in_order = True
    for run in runs:
        for start in range(0, len(run), MEMBERS_A_CHUNK):
            chunk = run[start : start + MEMBERS_A_CHUNK]
            if not in_order and chunk[0][1] is not None:
                chunk.sort(key=itemgetter(1))
            yield chunk


def _is_timed(pair: tuple[bytes, Any]) -> bool:
    return pair[1] is None


def adding(chunk: Pairs) -> tuple[str, tuple[Any, ...]]:
    """Return the name of the script that adds a chunk, without its prefix, and its arguments."""
    if chunk and chunk[0][1] is None:
        return "ick/add_now", tuple(member for member, _ in chunk)
    return "ick/add", tuple(part for member, score in chunk for part in (score, member))


class Debounce(NamedTuple):
    """How long a member is to rest before it is ready, and waits at most, in milliseconds."""

    quiet: int
    at_most: int


def checked_rest(quiet: Duration | None, at_most: Duration | None) -> Debounce | None:
    """Return how members are debounced, None for not at all.

    Raises: ConfigurationError for one of the two without the other, or wrong ones.
    """
    if quiet is None and at_most is None:
        return None
    if quiet is None or at_most is None:
        raise ConfigurationError(
            f"quiet={quiet!r}, at_most={at_most!r} is half a debounce: give both, in seconds; a"
            " member that never rests is ready after at_most"
        )
    rest = Debounce(milliseconds_of(quiet, "quiet"), milliseconds_of(at_most, "at_most"))
    if rest.at_most < rest.quiet:
        raise ConfigurationError(
            f"at_most={at_most!r} is shorter than quiet={quiet!r}: no member could rest so long;"
            " give at_most as long or longer"
        )
    return rest


def waiting_pairs(chunk: Pairs) -> Iterator[Any]:
    """Yield the arguments of a chunk whose members wait: score ('' for the time) and member."""
    for member, score in chunk:
        yield from ("" if score is None else score, member)


class ReservedMembers:
    """The members of a reservation, as its pieces come; see ``lua/shared/reservation.lua``.

    Arguments:
        names: of the Ick.
        token: of the reservation.
        text: of its first piece, which begins with the reservation's head.

    Attribute `count`: how many have come.
    """

    def __init__(self, names: IckNames, token: str, text: Any) -> None:
        self._keys = (*names.sets, names.held)
        self._token = token
        self._pairs: list[tuple[Any, float]] = []
        self.count = 0
        line, colon = ("\n", ":") if isinstance(text, str) else (b"\n", b":")
        last = text.split(line, 1)[0][-6:]
        self._between, self._mile = line + last + line, line + last + colon

    def add(self, text: Any, count: int) -> Steps[None]:
        """Add a piece. No round trip, but one if the text of a member contains a separator."""
        if not count:
            return
        parts = text.split(self._between)
        # The first part is the head, or nothing; a milestone ends each eighth score.
        parts[16::16] = [score.removesuffix(self._mile) for score in parts[16::16]]
        try:
            pairs = list(zip(parts[1::2], map(float, parts[2::2]), strict=True))
        except ValueError:
            pairs = []
        if len(pairs) != count:
            reply = yield Operation(
                load("ick/reserved"), self._keys, (self._token, self.count, count)
            )
            pairs = scored(reply or [])
        self._pairs += pairs
        self.count += count

    def pairs(self) -> list[tuple[Any, float]]:
        """Return the members and their scores, each member once."""
        if len(self._pairs) > MEMBERS_A_CHUNK:
            # Between two pieces a client without tokens may have shifted what comes behind.
            return list(dict(self._pairs).items())
        return self._pairs


def _checked_score(member: Member, score: object) -> Score:
    if isinstance(score, _NUMBERS) and not isinstance(score, bool) and _fits(score):
        # Others, of numpy for instance, have a text of their own, which no server reads.
        return score if type(score) in _PLAIN_NUMBERS else float(score)
    raise ConfigurationError(
        f"the score of {member!r} is {score!r}: give a number, seconds since the epoch for instance"
    )


def _fits(score: Score) -> bool:
    try:
        return not math.isnan(score)
    except OverflowError:
        # An int that no float can hold.
        return False


def history_of(key: bytes, score: bytes, attempts: int, times: list[int], earlier: bytes) -> str:
    """Return the history of a dead member, as JSON.

    Arguments:
        key: of the dead.
        score: as Redis writes it.
        times: in ms since the epoch.
        earlier: the history of a death before, or nothing.

    Raises: LayoutError if that is none. A script reads the score, which therefore comes first.
    """
    if earlier:
        before = stored_history(key, earlier)
        score = min(score, before["score"].encode(), key=float)
        attempts += before["attempts"]
        times = [*before["times"], *times]
    return json.dumps({"score": score.decode(), "attempts": attempts, "times": times[-TIMES_KEPT:]})


def stored_history(key: bytes, history: Any) -> dict[str, Any]:
    """Return the history of a dead member: its score, a text, its attempts, and its times in ms.

    Arguments:
        key: of the dead.
        history: as that has it.

    Raises: LayoutError for anything else.
    """
    try:
        known = json.loads(history)
        score, attempts, times = known["score"], known["attempts"], known["times"]
        is_history = (
            isinstance(score, str)
            and not math.isnan(float(score))
            and isinstance(times, list)
            and len(times) <= TIMES_KEPT
            and all(type(each) is int and 0 <= each <= MOST_STORED for each in (attempts, *times))
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        is_history = False
    if not is_history:
        raise unbelieved(key, "a dead member", history, "its score, attempts and times as JSON")
    return {"score": score, "attempts": attempts, "times": times}


def dead_members(key: bytes, flat: list[Any]) -> list[DeadMember]:
    """Return dead members, of a flat list of each and its history.

    Arguments:
        key: of the dead.

    Raises: LayoutError for a history that is none.
    """
    members = []
    # A hash's cursor may come by one member twice.
    for member, history in dict(zip(flat[::2], flat[1::2], strict=True)).items():
        known = stored_history(key, history)
        times = tuple(time / 1000 for time in known["times"])
        members.append(DeadMember(member, float(known["score"]), known["attempts"], times))
    return members
