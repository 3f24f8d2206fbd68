"""Ick: a queue of what is dirty, in which a member stands once and is never forgotten."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

from workstealing.errors import ConfigurationError
from workstealing.store.keys import require_one_slot, require_users_name, to_bytes
from workstealing.store.operations import Operation, Plan, perform, perform_async
from workstealing.store.scripts import load
from workstealing.store.twin import (
    AsyncClient,
    BlockingClient,
    ClientT,
    Twin,
    is_cluster,
    twin_for,
)
from workstealing.structures.ick_dead import DeadCommands
from workstealing.structures.ick_names import IckNames, Member, as_text
from workstealing.structures.ick_stats import StatsCommands
from workstealing.structures.steps import (
    AsyncStepsPipeline,
    BlockingStepsPipeline,
    Steps,
    StepsPipeline,
    drive,
    drive_async,
)

MEMBERS_A_CHUNK = 1000
Score = int | float
Members = Mapping[Any, Any] | Iterable[Any]
Pairs = list[tuple[bytes, Any]]


class Added(NamedTuple):
    """What an add did: how many members are new, and how many got a lower score."""

    new: int
    changed: int


class Committed(int):
    """How many members a commit removed.

    Attribute `ignored`: how many it did not, because they were not reserved any more: the
    reservation was returned by a reaper, or somebody else has reserved since.
    """

    ignored: int

    def __new__(cls, committed: int, ignored: int) -> Self:
        """Make the number that knows what was ignored."""
        made = super().__new__(cls, committed)
        made.ignored = ignored
        return made


class Batch(list[tuple[Any, float]]):
    """Reserved members with their scores, lowest first.

    Attributes: token: the reservation's, for `Ick.commit` from another process; committed: what the
    commit of an exchange did.
    """

    token: str
    committed: Committed

    def __init__(
        self, pairs: Iterable[tuple[Any, float]], token: str, committed: Committed
    ) -> None:
        super().__init__(pairs)
        self.token = token
        self.committed = committed

    @property
    def members(self) -> list[Any]:
        """The members without their scores."""
        return [member for member, _ in self]


# What a call gives back: the result, something to await, or the pipeline that it was queued on.
_AddedT = TypeVar("_AddedT")
_BatchT = TypeVar("_BatchT")
_CommittedT = TypeVar("_CommittedT")
_IntT = TypeVar("_IntT")
_PipelineT = TypeVar("_PipelineT")


class _IckCommands(StatsCommands, DeadCommands, Generic[_AddedT, _BatchT, _CommittedT, _IntT]):
    """What the blocking, the asyncio and the pipeline form of an Ick have in common."""

    token: str
    """The token of this object's last reservation, which its commits carry."""

    def add(self, members: Members | Member) -> _AddedT:
        """Add members, or lower their scores; of two scores the lower one wins.

        Arguments: members: {member: score}, pairs (member, score), or members alone, whose score is
        the server's time in seconds with fractions. Scores are numbers (inf is one, NaN is not);
        use one unit in one Ick. Returns: `Added`, (new, changed). Errors: ConfigurationError for a
        score that is no number; LayoutError. One round trip and six Redis commands for each 1,000
        members; each 1,000 are added atomically. A member that is given twice is taken in the order
        given; without members the Ick is made, or checked.
        """
        pairs = _pairs(members)
        operations = [self._adding(chunk) for chunk in in_chunks(pairs)] or [self._adding([])]
        combine = itemgetter(0) if len(operations) == 1 else _added
        added: _AddedT = self._perform(Plan(tuple(operations), combine))
        return added

    def reserve(self, n: int, backwash: bool = False) -> _BatchT:
        """Top up the consumer set to n members, and return its n lowest-scored members.

        Arguments: n: 0 or more; backwash: first put back what is reserved, so that the lowest of
        all are returned. Returns: a `Batch` of (member, score); members stay reserved, and are
        returned again, until they are committed. reserve(0) makes the Ick, or checks it, and
        changes nothing else; reserve(0, backwash=True) hands back what is reserved, unless this
        object's own reservation does not hold any more. Errors: ConfigurationError; LayoutError.
        One round trip for up to 1,000 members, and one or two for each 1,000 more; O(n log N) in
        the server. Each 1,000 are atomic, under one token: the rest is given up, and the batch is
        shorter, as soon as somebody else reserves. On a pipeline only the first 1,000 are part of
        its transaction.
        """
        return self.exchange(n, backwash=backwash)

    def commit(self, *members: Member, token: str | None = None) -> _CommittedT:
        """Remove members whose work is done from the consumer set.

        Arguments: members; token: of the `Batch` that they were reserved in, by default that of
        this object's last reservation. Returns: `Committed`, an int that knows how many were
        ignored because the reservation does not hold any more. Errors: LayoutError. One round trip
        for each 1,000 members; without any it only checks the Ick.
        """
        token = self._current_token() if token is None else checked_reservation(token)
        operations = self._commit_operations(members, token) or self._commit_operations(
            (), token, 1
        )
        committed: _CommittedT = self._perform(
            Plan(operations, lambda replies: _committed(replies, len(members)))
        )
        return committed

    def exchange(
        self, n: int, *commit: Member, backwash: bool = False, token: str | None = None
    ) -> _BatchT:
        """Commit members and then reserve, in one round trip (for up to 1,000 members to commit).

        Arguments: n: how many to reserve; commit: members; backwash and token: as of `reserve` and
        `commit`. Returns: a `Batch`, whose `committed` says what the commit did. Errors: as those.
        More than 1,000 members are reserved as by `reserve`.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 0:
            raise ConfigurationError(
                f"n={n!r} members cannot be reserved: give a number, 0 or more"
            )
        token = self._current_token() if token is None else checked_reservation(token)
        batch: _BatchT = self._perform_steps(self._exchanging(n, commit, backwash, token))
        return batch

    def _exchanging(
        self, n: int, commit: Sequence[Member], backwash: bool, token: str
    ) -> Steps[Batch]:
        members = [to_bytes(member) for member in commit]
        split = max(0, len(members) - MEMBERS_A_CHUNK)
        keys = (*self.names.sets, self.names.held, self.names.attempts)
        last = Operation(
            load("ick_exchange"),
            keys,
            (n, int(bool(backwash)), token, *members[split:]),
            lambda reply: reply,
        )
        *earlier, reply = yield [*self._commit_operations(members[:split], token), last]
        committed, new_token, flat, left = reply
        made = as_text(new_token)
        if made:
            # Before the rest of it, so that what is reserved can be committed whatever comes.
            self.note_token(made)
        if left:

            def going_on(left: Any, first: int) -> Operation:
                args = (made, n, left, first)
                return Operation(load("ick_reserve_on"), keys, args, lambda reply: reply)

            flat = yield from whole_reservation(flat, left, going_on)
        # Nothing is reserved under the token of a batch that was handed back.
        return Batch(
            scored(flat), made if n else "", _committed([*earlier, committed], len(commit))
        )

    def delete(self, unlink: bool = True) -> _IntT:
        """Delete the Ick with all that stands beside it.

        Arguments: unlink: let the server free the memory later; without it the server stands still
        for as long as that takes, some 0.3 us a member. Returns: how many of redis-ick's own three
        keys were deleted, 0 if there was no Ick. Errors: LayoutError. One round trip.
        """
        script = load("ick_unlink" if unlink else "ick_delete")
        deleted: _IntT = self._perform(Plan((Operation(script, self.names.all, (), int),)))
        return deleted

    def _commit_operations(
        self, members: Sequence[Member], token: str, least: int = 0
    ) -> tuple[Operation, ...]:
        raw = [to_bytes(member) for member in members]
        keys = (*self.names.sets, self.names.held, self.names.attempts)
        return tuple(
            Operation(load("ick_commit"), keys, (token, *raw[i : i + MEMBERS_A_CHUNK]), int)
            for i in range(0, max(least, len(raw)), MEMBERS_A_CHUNK)
        )

    def _adding(self, chunk: Pairs) -> Operation:
        script, args = adding(chunk)
        return Operation(load(script), self.names.sets, args, Added._make)

    def _current_token(self) -> str:
        return self.token

    def note_token(self, token: str) -> None:
        """Take the token of a new reservation; called by the package itself."""
        self.token = token


class _Ick(
    _IckCommands[_AddedT, _BatchT, _CommittedT, _IntT],
    Generic[ClientT, _AddedT, _BatchT, _CommittedT, _IntT],
):
    """What the blocking and the asyncio form share: the client, and the key's names."""

    def __init__(self, client: ClientT, key: Member) -> None:
        self.client: Any = client
        self.twin: Twin = twin_for(self, client)
        self.names = _checked_names(client, key)
        self.token = ""


class Ick(_Ick[BlockingClient, Added, Batch, Committed, int]):
    """A priority queue with write folding and two-phase commit for one consumer.

    A member that is added again keeps its lower score, so that hot members do not starve; it can be
    dirtied while it is being worked on, and is then reserved again, so that nothing is forgotten.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncIck` takes an asyncio client);
    key: the Ick's own. On a cluster a key is refused if redis-ick's names for its sets would lie in
    other slots (``a}b``, ``{}x``, ``x{y``). The slots of Redis Enterprise's own hashing policy are
    not supported for keys with braces, as redis-ick's are not.

    The layout is redis-ick's ``ick.v1``: Ruby and Python share a queue. What is beyond it stands in
    further keys that Ruby's scripts do not touch.

    Source: seed of ProsperWorks' redis-ick, with reservations fenced by tokens added.
    """

    _is_async_client: Literal[False] = False

    def _perform(self, plan: Plan) -> Any:
        return perform(self.client, plan)

    def _perform_steps(self, steps: Steps[Any]) -> Any:
        return drive(self.client, steps)

    def pipeline(self, transaction: bool = True) -> IckPipeline:
        """Return a pipeline: what is called on it is sent, with the user's own, by `execute`."""
        return IckPipeline(self, transaction)


class AsyncIck(
    _Ick[
        AsyncClient,
        Awaitable[Added],
        Awaitable[Batch],
        Awaitable[Committed],
        Awaitable[int],
    ]
):
    """An `Ick` on a redis.asyncio client: every method is awaited."""

    _is_async_client: Literal[True] = True

    def _perform(self, plan: Plan) -> Any:
        return perform_async(self.client, plan)

    def _perform_steps(self, steps: Steps[Any]) -> Any:
        return drive_async(self.client, steps)

    def pipeline(self, transaction: bool = True) -> AsyncIckPipeline:
        """Return a pipeline whose `execute` is awaited; see `Ick.pipeline`."""
        return AsyncIckPipeline(self, transaction)


class _Queued(_IckCommands[_PipelineT, _PipelineT, _PipelineT, _PipelineT], StepsPipeline):
    """What both forms of a pipeline share: every method queues, and returns the pipeline."""

    def __init__(self, ick: Ick | AsyncIck, transaction: bool) -> None:
        super().__init__(ick.client, transaction)
        self._ick = ick
        self.names = ick.names
        self.token = ick.token

    def _perform(self, plan: Plan) -> Self:
        return self.queue_plan(plan)

    def _perform_steps(self, steps: Steps[Any]) -> Self:
        return self.queue_steps(steps)

    def _current_token(self) -> str:
        # Somebody may have reserved by the Ick itself since this pipeline was made.
        return self._ick.token

    def note_token(self, token: str) -> None:
        """Hand a reservation's token to the Ick that this pipeline belongs to."""
        self._ick.note_token(token)


class IckPipeline(_Queued["IckPipeline"], BlockingStepsPipeline):
    """The methods of an `Ick`, and the user's own commands, sent together by `execute`."""


class AsyncIckPipeline(_Queued["AsyncIckPipeline"], AsyncStepsPipeline):
    """An `IckPipeline` whose `execute` is awaited."""


def _checked_names(client: Any, key: Member) -> IckNames:
    if not isinstance(key, str | bytes) or not key:
        raise ConfigurationError(f"the key {key!r} is not usable: give a text or bytes, not empty")
    names = IckNames(key)
    require_users_name(names.version)
    if is_cluster(client):
        require_one_slot(names.all)
    return names


# Tuples, which isinstance() checks much faster than unions: every member comes by here.
_NAMES = (str, bytes)
_NUMBERS = (int, float)
_PLAIN_NUMBERS = frozenset(_NUMBERS)


def checked_reservation(token: object) -> str:
    """Return a reservation's token. Errors: ConfigurationError for what can be none."""
    if isinstance(token, str) and token.isascii():
        return token
    raise ConfigurationError(
        f"token={token!r} is none of a reservation: give the token of a Batch, or none"
    )


def _pairs(members: Members | Member) -> Pairs:
    """Return members as pairs of bytes and a checked score, or None for the server's time."""
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

    What is added first does not matter but to a member that is given more than once: those keep
    their order, so that each call counts as it would by itself.
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
        return "ick_add_now", tuple(member for member, _ in chunk)
    return "ick_add", tuple(part for member, score in chunk for part in (score, member))


def whole_reservation(
    flat: list[Any], left: Any, going_on: Callable[[Any, int], Operation]
) -> Steps[list[Any]]:
    """Go on with a reservation that one script was not to make; return all of its members.

    Arguments: flat: the first piece; left: what is left to be done; going_on: makes the next
    operation of that, and of how many members have been returned. A piece that finds another
    reservation in place of this one is the last.
    """
    while left:
        (reply,) = yield [going_on(left, len(flat) // 2)]
        if reply is None:
            break
        more, left = reply
        flat = flat + more
    return flat


def scored(flat: list[Any]) -> list[tuple[Any, float]]:
    """Return a flat list of members and scores as pairs."""
    pairs = [(member, float(score)) for member, score in zip(flat[::2], flat[1::2], strict=True)]
    if len(pairs) > MEMBERS_A_CHUNK:
        # Between two pieces a client without tokens may have shifted what comes behind.
        return list(dict(pairs).items())
    return pairs


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


def _added(replies: list[Any]) -> Added:
    return Added(sum(new for new, _ in replies), sum(changed for _, changed in replies))


def _committed(replies: Sequence[int], asked: int) -> Committed:
    committed = sum(replies)
    return Committed(committed, asked - committed)
