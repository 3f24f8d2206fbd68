"""Ick, its asyncio form and its pipelines: each operation written once, for all of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Never

from workstealing.clock import Duration
from workstealing.errors import ConfigurationError
from workstealing.recruiting.checks import checked_count
from workstealing.recruiting.faults import log_safely
from workstealing.store.fleet import placed
from workstealing.store.job_client import (
    AsyncClient,
    BlockingClient,
    ClientT,
    JobClient,
    is_cluster,
    job_client_for,
)
from workstealing.store.keys import require_one_slot, require_users_name, to_bytes
from workstealing.store.operations import (
    Asynchronous,
    Blocking,
    Operation,
    Queued,
    Steps,
    operation,
)
from workstealing.store.paging import LOOKED_AT, Page, oldest
from workstealing.store.pipeline import AsyncPipeline, BlockingPipeline
from workstealing.store.scripts import load
from workstealing.structures.access import QUEUED, Access
from workstealing.structures.ick.members import (
    GRAVES_A_CHUNK,
    MEMBERS_A_CHUNK,
    Acked,
    Added,
    Batch,
    DeadMember,
    Debounce,
    IckNames,
    Member,
    Members,
    Pairs,
    ReservedMembers,
    adding,
    checked_reservation,
    checked_rest,
    dead_members,
    in_chunks,
    pairs_of,
    require_one,
    waiting_pairs,
)
from workstealing.structures.layout import as_text
from workstealing.structures.structure import (
    NOTE,
    OK,
    WARNING,
    Check,
    DeadItem,
    DeadLetters,
    Structure,
    times_text,
)

logger = logging.getLogger("workstealing")

UNITS = ("seconds", "milliseconds", "microseconds")
"""The units in which today's times are counted, told by their size."""


class _IckOperations:
    """The operations of an Ick, for the blocking, the asyncio and the pipeline form."""

    names: IckNames
    token: str
    """The token of this object's last reservation, which its acknowledgements carry."""
    _has_warned = False

    @operation
    def add(
        self,
        members: Members | Member,
        *others: Never,
        quiet: Duration | None = None,
        at_most: Duration | None = None,
    ) -> Steps[Added]:
        """Add members, or lower their scores; of two scores the lower one wins.

        Arguments:
            members: {member: score}, pairs (member, score), or members alone, whose score is the
                server's time in seconds with fractions.
            quiet: debounce: they wait until nobody has added them so for this long, seconds or a
                timedelta; with `at_most`.
            at_most: they wait for so long at most after the first such add.

        Scores are numbers (inf is one, NaN is not); use one unit in one Ick. A member that is ready
        already does not wait, and a plain add makes a waiting one ready. Returns: `Added`, (new,
        changed). Raises: ConfigurationError for a score that is no number, for `at_most` below
        `quiet`, or one without the other; LayoutError. Six Redis commands for each 1,000 members,
        which are added atomically (with `quiet` up to eleven); one round trip for each 512,000. A
        member that is given twice is added in the order given. Without members the Ick is made, or
        checked.
        """
        require_one(others)
        return self._adding(pairs_of(members), checked_rest(quiet, at_most))

    @operation
    def reserve(self, n: int, backwash: bool = False) -> Steps[Batch]:
        """Top up the consumer set to n members, and return its n lowest-scored members.

        Arguments:
            n: 0 or more.
            backwash: first put reserved members back, so that the lowest of all are returned.

        Returns: a `Batch` of (member, score); members stay reserved, and are returned again, until
        they are acknowledged. reserve(0) makes the Ick, or checks it, and changes nothing else;
        reserve(0, backwash=True) hands reserved members back, unless this object's own reservation
        no longer holds. Raises: ConfigurationError; LayoutError. One round trip for up to 1,000
        members, and one or two for each 1,000 more; one more if a member contains the separator of
        the reservation's text; O(n log N) in the server. Each 1,000 are atomic, under one token. As
        soon as another consumer reserves, the rest is given up, and the batch is shorter. On a
        pipeline only the first 1,000 are part of its transaction.
        """
        return self._exchanging(checked_count(n, "n"), (), backwash, self.token)

    @operation
    def ack(self, *members: Member, token: str | None = None) -> Steps[Acked]:
        """Acknowledge members whose work is done: remove them from the consumer set.

        Arguments:
            token: of their `Batch`, by default that of this object's last reservation.

        Returns: `Acked`, an int that knows how many members were ignored because the reservation no
        longer holds. Raises: ConfigurationError; LayoutError. One script for each 1,000 members,
        and one round trip for each 512,000; without members the Ick is only checked.
        """
        return self._acking([to_bytes(member) for member in members], self._token(token))

    @operation
    def exchange(
        self, n: int, *members: Member, backwash: bool = False, token: str | None = None
    ) -> Steps[Batch]:
        """Acknowledge members and then reserve, in one round trip.

        Arguments:
            n: how many to reserve.
            members: whose work is done.
            backwash: as of `reserve` and `ack`.
            token: as of `reserve` and `ack`.

        Returns: a `Batch`, whose `acked` is the result of the `ack`. Raises: as both. More than
        1,000 members are reserved as by `reserve`.
        """
        done = [to_bytes(member) for member in members]
        return self._exchanging(checked_count(n, "n"), done, backwash, self._token(token))

    @operation
    def stats(self) -> Steps[dict[str, Any] | None]:
        """Describe the Ick, with redis-ick's names.

        Returns: None if there is no Ick, else a dict: key, pset_key, cset_key, ver, cset_size,
        pset_size, total_size; pset_min, pset_max, cset_min, cset_max, total_min and total_max if
        the sets are not empty; waiting_size, of members that wait for their rest and are not part
        of total_size; dead_size; and mixed_units: whether the scores are in different units of
        time, which starves the larger (a warning in the log says so once). Raises: LayoutError. One
        round trip.
        """
        return self._describing()

    @operation
    def dead(self, n: int = 100) -> Steps[Page[DeadMember]]:
        """List dead members, the oldest first.

        Arguments:
            n: 1 or more.

        Returns: a `Page` of `DeadMember`, a list whose `more` says how many others there are; of
        more than 1,000 (or n) it looks at that many only. Raises: ConfigurationError; LayoutError.
        One round trip; beyond 1,000 members one for each 1,000 of them, which is a walk: the list
        may have members that die or are revived meanwhile, or not.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n < 2**62:
            raise ConfigurationError(
                f"n={n!r} dead members cannot be listed: give a number, 1 or more"
            )
        return listing_dead(self.names, int(n))

    @operation
    def revive(self, *members: Member) -> Steps[int]:
        """Put dead members back into the producer set, their attempts forgotten.

        Of two scores the lower one wins. Returns: how many were dead. Raises: LayoutError. One
        script for each 500 members, each atomic, in one round trip.
        """
        return burying(self.names, "ick/revive", members)

    @operation
    def discard(self, *members: Member) -> Steps[int]:
        """Forget dead members for good.

        Returns: how many were dead. Raises: LayoutError. One script for each 500 members, in one
        round trip.
        """
        return burying(self.names, "ick/discard", members)

    @operation
    def delete(self, unlink: bool = True) -> Steps[int]:
        """Delete the Ick with all its keys.

        Arguments:
            unlink: let the server free the memory later; without it the server stands still for as
                long as that takes, some 0.3 us a member.

        Returns: how many of redis-ick's own three keys were deleted, 0 if there was no Ick. Raises:
        LayoutError. One round trip.
        """
        return self._deleting(unlink)

    def _token(self, token: str | None) -> str:
        return self.token if token is None else checked_reservation(token)

    def _adding(self, pairs: Pairs, rest: Debounce | None = None) -> Steps[Added]:
        chunks = [pairs] if len(pairs) < 2 else list(in_chunks(pairs))
        if len(chunks) == 1:
            return (yield self._addition(chunks[0], rest))  # type: ignore[no-any-return]
        replies = yield [self._addition(chunk, rest) for chunk in chunks]
        return Added(sum(new for new, _ in replies), sum(changed for _, changed in replies))

    def _addition(self, chunk: Pairs, rest: Debounce | None) -> Operation:
        if rest is not None:
            keys, given = (*self.names.sets, *self.names.resting), (*rest, *waiting_pairs(chunk))
            return Operation(load("ick/add_waiting"), keys, given, Added._make)
        script, args = adding(chunk)
        return Operation(load(script), self.names.sets, args, Added._make)

    def _acking(self, members: Sequence[bytes], token: str) -> Steps[Acked]:
        acked: int
        if len(members) <= MEMBERS_A_CHUNK:
            acked = yield self._ack(members, token)
        else:
            acked = sum((yield self._acks(members, token)))
        return Acked(acked, len(members) - acked)

    def _acks(self, members: Sequence[bytes], token: str) -> list[Operation]:
        starts = range(0, len(members), MEMBERS_A_CHUNK)
        return [self._ack(members[start : start + MEMBERS_A_CHUNK], token) for start in starts]

    def _ack(self, members: Sequence[bytes], token: str) -> Operation:
        return Operation(load("ick/ack"), self.names.reserved, (token, *members), int)

    def _exchanging(
        self, n: int, members: Sequence[bytes], backwash: bool, token: str
    ) -> Steps[Batch]:
        split = max(0, len(members) - MEMBERS_A_CHUNK)
        args = (n, int(bool(backwash)), token, *members[split:])
        keys = (*self.names.reserved, *self.names.resting)
        last = Operation(load("ick/exchange"), keys, args)
        if split:
            *earlier, reply = yield [*self._acks(members[:split], token), last]
        else:
            earlier, reply = [], (yield last)
        acked, new_token, text, count, left = reply
        made = as_text(new_token)
        if made:
            # Before the rest, so that reserved members can be acknowledged whatever comes.
            self.token = made
        reserved = ReservedMembers(self.names, made, text)
        yield from reserved.add(text, count)
        while left:
            args = (made, n, left, reserved.count)
            reply = yield Operation(load("ick/reserve_on"), keys, args)
            if reply is None:
                # Another reservation has replaced this one.
                break
            text, count, left = reply
            yield from reserved.add(text, count)
        acked += sum(earlier)
        # After a batch is handed back, nothing is reserved under its token.
        return Batch(reserved.pairs(), made if n else "", Acked(acked, len(members) - acked))

    def _describing(self) -> Steps[dict[str, Any] | None]:
        stats, units = yield description(self.names)
        if len(units) > 1 and not self._has_warned:
            self._has_warned = True
            warn_of_units(stats["key"], units)
        return stats  # type: ignore[no-any-return]

    def _deleting(self, unlink: bool) -> Steps[int]:
        word = "UNLINK" if unlink else "DEL"
        return (yield Operation(load("ick/delete"), self.names.all, (word,), int))  # type: ignore[no-any-return]


class _EitherIck(_IckOperations, Structure, Generic[ClientT]):
    """The blocking and the asyncio form have a client, and the key's names."""

    kind = "Ick"
    # Of redis-ick; each of these has the key first, which an Ick knows.
    other_names: ClassVar[Mapping[str, str]] = {
        "ickadd": "add({member: score}), the other way round",
        "ickreserve": "reserve(n)",
        "ickcommit": "ack(*members)",
        "commit": "ack(*members)",
        "ickexchange": "exchange(n, *members)",
        "ickstats": "stats()",
        "ickdel": "delete()",
    }
    access = Access(keys=("NAME", "NAME/ick/{NAME}/*"), scripts=("ick",), commands=QUEUED)

    def __init__(self, client: ClientT, key: Member) -> None:
        self.client = client = placed(client, key)
        self.job_client: JobClient = job_client_for(self, client)
        self.names = _checked_names(client, key)
        self.name = as_text(self.names.version)
        self.token = ""

    def size_steps(self) -> Steps[int]:
        """Return how many members wait or are reserved."""
        stats, _ = yield description(self.names)
        return stats["total_size"] + stats["waiting_size"] if stats else 0

    def dead_steps(self) -> Steps[Sequence[DeadLetters]]:
        """Return one `DeadMembers` if there are dead members, else an empty sequence."""
        stats, _ = yield description(self.names)
        return [DeadMembers(self.names, stats["dead_size"])] if stats and stats["dead_size"] else ()

    def check_steps(self) -> Steps[Sequence[Check]]:
        """Say whether the keys are those of an Ick."""
        stats, units = yield description(self.names)
        named = f"{self.kind} {self.name}"
        if stats is None:
            return [Check("", NOTE, f"{named}: nothing has been written yet")]
        if len(units) > 1:
            return [Check("", WARNING, f"{named}: {_starving(units)}")]
        return [Check("", OK, f"{named}: {stats['total_size']:,} members, layout {stats['ver']}")]


class Ick(_EitherIck[BlockingClient], Blocking):
    """A priority queue with write folding and two-phase commit for one consumer.

    A member that is added again keeps its lower score, so hot members do not starve. If a member is
    dirtied while it is being worked on, it is reserved again, so nothing is forgotten.

    Arguments:
        client: a redis.Redis or redis.RedisCluster (`AsyncIck` takes an asyncio client).
        key: the Ick's own.

    On a cluster a key is refused if redis-ick's names for its sets would lie in other slots
    (``a}b``, ``{}x``, ``x{y``). Neither this class nor redis-ick supports keys with braces under
    Redis Enterprise's own hashing policy. Raises: ConfigurationError for a key or a client of
    another kind; CrossSlotError.

    The layout is redis-ick's ``ick.v1``: Ruby and Python share a queue. All additions use further
    keys, which Ruby's scripts do not touch.

    Source: seed of ProsperWorks' redis-ick, with reservations fenced by tokens added.
    """

    def pipeline(self, transaction: bool = True) -> IckPipeline:
        """Return a pipeline: its calls are sent, with the user's own commands, by `execute`."""
        return IckPipeline(self, transaction)


class AsyncIck(_EitherIck[AsyncClient], Asynchronous):
    """An `Ick` on a redis.asyncio client: every method is awaited."""

    def pipeline(self, transaction: bool = True) -> AsyncIckPipeline:
        """Return a pipeline whose `execute` is awaited; see `Ick.pipeline`."""
        return AsyncIckPipeline(self, transaction)


class _QueuedIck(_IckOperations, Queued):
    """Both forms of a pipeline share the token of the Ick that they belong to."""

    _ick: Ick | AsyncIck

    @property
    def token(self) -> str:
        """The token of the Ick's last reservation, which may be later than this pipeline."""
        return self._ick.token

    @token.setter
    def token(self, token: str) -> None:
        self._ick.token = token


class IckPipeline(_QueuedIck, BlockingPipeline):
    """The methods of an `Ick`, and the user's own commands, sent together by `execute`."""

    def __init__(self, ick: Ick, transaction: bool) -> None:
        super().__init__(ick.client, transaction)
        self._ick, self.names = ick, ick.names


class AsyncIckPipeline(_QueuedIck, AsyncPipeline):
    """An `IckPipeline` whose `execute` is awaited."""

    def __init__(self, ick: AsyncIck, transaction: bool) -> None:
        super().__init__(ick.client, transaction)
        self._ick, self.names = ick, ick.names


class DeadMembers(DeadLetters):
    """The dead members of an Ick, or of an ick shard, as people are shown them.

    Arguments:
        names: of the Ick.
        size: how many there are.
        name: of the ick shard.
    """

    def __init__(self, names: IckNames, size: int, name: str = "") -> None:
        self._names, self.size, self.name = names, size, name

    def list_steps(self, n: int) -> Steps[Page[DeadItem]]:
        """List up to n dead members, the oldest first."""
        found: Page[DeadMember] = yield from listing_dead(self._names, n)
        items = (
            DeadItem(
                each.member,
                each.attempts,
                each.times[-1:],
                error=f"its reservation went stale {times_text(each.attempts)}",
            )
            for each in found
        )
        return Page(items, found.total)

    def revive_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Put dead members back; return how many were dead."""
        return burying(self._names, "ick/revive", members)

    def discard_steps(self, members: Sequence[Any]) -> Steps[int]:
        """Forget dead members for good; return how many were dead."""
        return burying(self._names, "ick/discard", members)


def listing_dead(names: IckNames, n: int) -> Steps[Page[DeadMember]]:
    """List up to n dead members; see `Ick.dead`."""
    found: dict[Any, DeadMember] = {}
    cursor: Any = 0
    while True:
        piece = Operation(load("ick/dead"), names.buried, (MEMBERS_A_CHUNK, cursor))
        total, cursor, *flat = yield piece
        for member in dead_members(names.dead, flat):
            found.setdefault(member.member, member)
        if n <= LOOKED_AT or len(found) >= n or int(cursor) == 0:
            return oldest(found.values(), n, _age, int(total))


def _age(member: DeadMember) -> tuple[float, bytes]:
    return (member.times[-1] if member.times else 0.0), to_bytes(member.member)


def burying(names: IckNames, script: str, members: Sequence[Any]) -> Steps[int]:
    """Run a script on dead members, 500 at a time; return how many were dead."""
    raw = [to_bytes(member) for member in members]
    done = yield [
        Operation(load(script), names.buried, tuple(raw[i : i + GRAVES_A_CHUNK]), int)
        for i in range(0, len(raw), GRAVES_A_CHUNK)
    ]
    return sum(done)


def description(names: IckNames) -> Operation:
    """Return the operation that describes an Ick: a dict, None for none, and the units of time."""

    def described(reply: list[Any] | None) -> tuple[dict[str, Any] | None, list[str]]:
        if reply is None:
            return None, []
        version, producer, *producer_ends = reply[:4]
        consumer, *consumer_ends, dead = reply[4:8]
        stats: dict[str, Any] = {
            "key": as_text(names.version),
            "pset_key": as_text(names.pset),
            "cset_key": as_text(names.cset),
            "ver": as_text(version),
            "cset_size": consumer,
            "pset_size": producer,
            "total_size": producer + consumer,
        }
        ends: list[float] = []
        for name, pair in (("pset", producer_ends), ("cset", consumer_ends)):
            if pair[0]:
                low, high = float(pair[0]), float(pair[1])
                stats[f"{name}_min"], stats[f"{name}_max"] = low, high
                ends += low, high
        if ends:
            stats["total_min"], stats["total_max"] = min(ends), max(ends)
        stats["dead_size"] = dead
        *counts, stats["waiting_size"] = reply[8:]
        units = [unit for unit, count in zip(UNITS, counts, strict=True) if count]
        stats["mixed_units"] = len(units) > 1
        return stats, units

    return Operation(load("ick/stats"), (*names.buried, *names.resting), (), described)


def warn_of_units(key: str, units: list[str]) -> None:
    """Say in the log that an Ick's scores are in several units of time."""
    log_safely(logger, logging.WARNING, "the Ick %s %s", key, _starving(units))


def _starving(units: list[str]) -> str:
    return f"holds scores in {' and '.join(units)}: the larger ones starve; use one unit"


def _checked_names(client: Any, key: Member) -> IckNames:
    if not isinstance(key, str | bytes) or not key:
        raise ConfigurationError(f"the key {key!r} is not usable: give a text or bytes, not empty")
    names = IckNames(key)
    require_users_name(names.version)
    if is_cluster(client):
        require_one_slot(names.all)
    return names
