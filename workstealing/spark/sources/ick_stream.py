"""The stream of an Ick: where a query stands, and the consumer that holds its leases."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from redis.exceptions import RedisError

from workstealing.errors import WorkStealingError
from workstealing.spark.sources.batches import Admission, Rest, wrong_offset
from workstealing.spark.sources.options import shared_out
from workstealing.store.operations import drive
from workstealing.structures import NoLease, ShardedIck
from workstealing.structures.sharded_ick import Leases
from workstealing.structures.sharded_ick.leasing import ShardLook, look

FORMAT = "workstealing.ick"


@dataclass(frozen=True)
class IckOffset:
    """The offset of a stream: behind the batch whose reservations it names.

    Fields: query: an id of the query, which its checkpoint keeps; seq: how many batches there were;
    tokens: the token of the reservation on each ick shard with members in the last batch.
    """

    query: str
    seq: int = 0
    tokens: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def new(cls) -> IckOffset:
        """Return the offset of a new query, in which nothing has been read."""
        return cls(uuid4().hex)

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> IckOffset:
        """Read what `as_dict` has made. Raises: ConfigurationError for anything else."""
        try:
            query, seq, tokens = offset["query"], offset["seq"], offset["tokens"]
            return cls(str(query), int(seq), {int(i): str(token) for i, token in tokens.items()})
        except (AttributeError, KeyError, TypeError, ValueError):
            raise wrong_offset(FORMAT, offset) from None

    def as_dict(self) -> dict[str, Any]:
        """Return what Spark writes into the checkpoint, as JSON."""
        tokens = {str(shard): token for shard, token in sorted(self.tokens.items())}
        return {"query": self.query, "seq": self.seq, "tokens": tokens}

    def following(self, tokens: Mapping[int, str]) -> IckOffset:
        """Return the offset behind the next batch, which has these reservations."""
        return IckOffset(self.query, self.seq + 1, dict(tokens))


logger = logging.getLogger("workstealing.spark")

# The leases of a query that its checkpoint does not know yet hold no longer. Should it be killed by
# then, the next run, under another name, waits for their end.
BEGINNING_SECONDS = 10.0
PAUSE_SECONDS = 0.5
# One script reserves them, and the server does nothing else meanwhile, for some 0.2 s.
MOST_OF_A_SHARD = 50_000


class IckConsumer:
    """Consumes a whole ShardedIck for one query.

    Arguments:
        lease: how long its leases hold, in seconds.
        admission: holds small batches back.
        sleep: waits, for tests.
        patience: for how many seconds others' leases are waited for, however long they hold; None:
            for 11 s, and only if they end within 10 s.
    """

    def __init__(
        self,
        sharded: ShardedIck,
        lease: float,
        admission: Admission,
        sleep: Callable[[float], None] = time.sleep,
        patience: float | None = None,
    ) -> None:
        self._sharded = sharded
        self._lease = lease
        self._admission = admission
        self._patience = patience
        # For how long others' leases have been waited for; one that was quicker ends no wait.
        self._waited = 0.0
        self._sleep = sleep
        self._rest = Rest()
        self._leases: Leases | None = None
        # Whether this process has held them before: then its own name there is a successor's.
        self._has_held = False
        # Whether they are those of a query that begins, and hold for a short time alone.
        self._is_beginning = False
        self._finished: IckOffset | None = None
        # For AvailableNow: how many members are still to be read; None: whatever comes.
        self._remaining: int | None = None
        self._is_first, self._is_second_try = True, False
        # How many members there were at the last look, and how many of these are in a batch.
        self._seen: tuple[int, int] | None = None

    def prepare_available_now(self) -> None:
        """Note what is there now; what comes later is not read. One round trip."""
        self._remaining = sum(each.waiting + each.reserved for each in self._look())

    def latest(self, start: IckOffset, limit: int | None) -> IckOffset:
        """Finish what was read up to `start`, and reserve the next batch.

        Arguments:
            limit: how many members at most, None for as many as there are; of an ick shard 50,000
                at most.

        Returns: the offset behind the batch, or `start` itself if there is nothing to read, or a
        resize or, with patience, another consumer is to be waited for. Raises: NoLease if another
        query reads the same ShardedIck, or another run of this one has taken over; those of Redis:
        nothing is lost by them. Fewer members than the option minMembersPerTrigger are held back,
        unless all are asked for. Others' leases that end within 10 s are waited for, 11 s at most:
        they may be those of a run of this query that was killed before its checkpoint knew it. One
        round trip where there is nothing to do, four at most else, and one more for each 5,000
        members to be finished.
        """
        if self._remaining == 0 and start == self._finished:
            return start
        if self._remaining is None:
            self._rest.wait(self._sleep)
        shards = self._look()
        if self._leases is None:
            found = self._wait_for_others(start, limit, shards)
            if found is None:
                return start
            shards = found
        if self._is_resizing():
            return self._make_way(start)
        sizes = {shard: each.waiting + each.reserved for shard, each in enumerate(shards)}
        self._seen = sum(sizes.values()), 0
        holds_nothing = self._leases is None and not start.tokens
        # Until there is something, and enough of it, that stays so.
        if holds_nothing and (not any(sizes.values()) or self._holds_back(sizes, limit)):
            _refuse_others(self._sharded.name, _consumer(start), shards)
            self._waited = 0.0
            return self._nothing(start)
        try:
            leases = self._hold(start, shards)
        except NoLease as error:
            shards = self._look()
            if self._is_resizing():
                return self._make_way(start)
            if self._is_patient and self._left_of_others(start, shards):
                # Somebody was quicker, perhaps another one that has waited.
                return self.latest(start, limit)
            _refuse_others(self._sharded.name, _consumer(start), shards, self._has_held)
            raise NoLease(f"format {FORMAT!r}: {error}") from None
        try:
            end = self._next(start, limit, sizes, leases)
            end = self._once_more(start, limit) if end is None else end
        except Exception:
            if start.seq == 0:
                # The checkpoint does not know this query yet: a next run would be another one.
                self._release()
            raise
        if end.seq == 0:
            # Nor does it when there was nothing to reserve after all.
            self._release()
        return end

    def seen(self) -> dict[str, int] | None:
        """Return the backlog at the last look, None before it; no round trip.

        Returns: membersInBatch: how many the batch that begins has; membersBehind: how many wait
        for later ones.
        """
        if self._seen is None:
            return None
        there, in_batch = self._seen
        return {"membersInBatch": in_batch, "membersBehind": there - in_batch}

    def begin(self, batch: IckOffset) -> None:
        """Extend the first, short leases to full length: the checkpoint now has the query's name.

        Arguments:
            batch: the offset behind the batch that begins.

        Faults are passed over: the next `latest` does it. Two round trips for a query's first
        batch, none for others.
        """
        if self._leases is None or not self._is_beginning or not batch.seq:
            return
        try:
            self._take(batch, take_over=True)
        except (RedisError, OSError, WorkStealingError) as error:
            logger.info("the leases of %s stay short for now: %s", self._sharded.name, error)

    def commit(self, end: IckOffset) -> None:
        """Finish what was read up to `end`, if `latest` has not done so; faults are passed over.

        If this method raised an error, Spark would fail the query, and would not repeat the commit.
        So a fault is passed over, and the next `latest` finishes what the commit could not.
        """
        try:
            if self._leases is not None:
                self._finish(end, self._leases)
        except (RedisError, OSError, WorkStealingError) as error:
            logger.info("a commit of %s is put off: %s", self._sharded.name, error)

    def _next(
        self, start: IckOffset, limit: int | None, sizes: dict[int, int], leases: Leases
    ) -> IckOffset | None:
        """Finish and reserve; None if an end of AvailableNow may be none, for want of leases."""
        for shard, done in self._finish(start, leases).items():
            sizes[shard] -= done
            if self._remaining is not None and self._is_first:
                # It was there when this run began, and had been read before.
                self._remaining -= done
        if start.tokens and self._holds_back(sizes, limit):
            self._seen = sum(sizes.values()), 0
            return self._nothing(start)
        most = sum(sizes.values()) if limit is None else limit
        if self._remaining is not None:
            most = min(most, self._remaining)
        bounded = {shard: min(size, MOST_OF_A_SHARD) for shard, size in sizes.items()}
        reserved = leases.reserve(shared_out(bounded, most, start.seq))
        in_batch = sum(count for _, count in reserved.values())
        # Others may have added some between the look and this.
        self._seen = max(sum(sizes.values()), in_batch), in_batch
        if not reserved:
            if self._remaining is not None:
                # The end of this run: another query, or the next run, may come at once.
                if self._release():
                    return None
                self._remaining = 0
            return self._nothing(start)
        self._is_first = self._is_second_try = False
        if self._remaining is not None:
            self._remaining -= in_batch
        return start.following({shard: token for shard, (token, _) in reserved.items()})

    def _once_more(self, start: IckOffset, limit: int | None) -> IckOffset:
        """Do `latest` again after leases that ran out within it."""
        if self._is_second_try:
            raise NoLease(
                f"format {FORMAT!r}: the leases of {self._sharded.name!r} ran out between two"
                " commands, twice in a row: give the option 'leaseSeconds' a"
                " larger number; nothing is lost"
            )
        self._is_second_try, self._finished = True, None
        return self.latest(start, limit)

    def _holds_back(self, sizes: Mapping[int, int], limit: int | None) -> bool:
        return not self._wants_all(limit) and self._admission.holds_back(sum(sizes.values()))

    def _wants_all(self, limit: int | None) -> bool:
        """Whether the trigger is AvailableNow or Once."""
        return limit is None or self._remaining is not None

    def _look(self) -> list[ShardLook]:
        return drive(self._sharded.client, look(self._sharded.core))[1]

    def _is_resizing(self) -> bool:
        layout = self._sharded.core.layout
        return layout is not None and layout.moving_from > 0

    @property
    def _is_patient(self) -> bool:
        """Whether others' leases are to be waited for on, however long they hold."""
        return self._patience is not None and self._waited < self._patience and not self._has_held

    def _wait_for_others(
        self, start: IckOffset, limit: int | None, shards: list[ShardLook]
    ) -> list[ShardLook] | None:
        """Wait for others' leases if they end soon enough; return the look after that.

        With patience it waits for a moment only, and returns None: the query is asked again, so
        that it can be stopped meanwhile. That does not go with AvailableNow, nor with Once, which
        would end.
        """
        is_first = not self._waited
        while left := self._left_of_others(start, shards):
            is_patient = self._is_patient
            ends_soon = left <= BEGINNING_SECONDS and self._waited < BEGINNING_SECONDS + 1
            if not (is_patient or ends_soon):
                return shards
            if is_first:
                is_first = False
                logger.warning(
                    "%s is leased for another %.0f s, perhaps by a run of this query that was"
                    " killed when it began: this one waits for the end",
                    *(self._sharded.name, left),
                )
            pause = min(left, PAUSE_SECONDS)
            self._sleep(pause)
            self._waited += pause
            if is_patient and not self._wants_all(limit):
                return None
            shards = self._look()
        return shards

    @staticmethod
    def _left_of_others(start: IckOffset, shards: list[ShardLook]) -> float:
        """Return for how many seconds the longest lease of others holds, 0 without any."""
        others = [each.left_ms for each in shards if each.consumer != _consumer(start)]
        return max(others, default=0) / 1000

    def _take(self, start: IckOffset, take_over: bool) -> Leases:
        """Take the leases; those of a query that its checkpoint does not know for a short time."""
        begins = start.seq == 0
        lease = min(self._lease, BEGINNING_SECONDS) if begins else self._lease
        taken = self._sharded.lease_all(_consumer(start), lease, take_over=take_over)
        self._leases, self._has_held, self._is_beginning = taken, True, begins
        self._waited = 0.0
        return taken

    def _hold(self, start: IckOffset, shards: list[ShardLook]) -> Leases:
        """Return the leases of all ick shards: extended, or taken anew. Raises: NoLease."""
        if self._leases is not None:
            now = [(each.lease_token, each.left_ms > 0) for each in shards]
            if now == [(leased.lease_token, True) for leased in self._leases]:
                if self._is_beginning and start.seq:
                    return self._take(start, take_over=True)
                short = any(each.left_ms < self._lease * 500 for each in shards)
                if not short or not self._leases.extend():
                    return self._leases
            # They ran out, in a long batch or a resize. The others are given back, so that
            # a consumer that has come in between is seen as one.
            self._release()
        # A run that was started again takes over at once, and fences the one before. One that has
        # lost its leases takes them from no other.
        return self._take(start, take_over=not self._has_held)

    def _finish(self, offset: IckOffset, leases: Leases) -> dict[int, int]:
        if not offset.tokens or offset == self._finished:
            return {}
        done = leases.ack_all(offset.tokens)
        self._finished = offset
        return done

    def _make_way(self, start: IckOffset) -> IckOffset:
        """Finish what has been read, and let a resize have the ick shards."""
        if self._leases is not None:
            logger.warning(
                "%s is being resized: this query waits until that is done", self._sharded.name
            )
            self._finish(start, self._leases)
            self._release()
        return self._nothing(start)

    def _nothing(self, start: IckOffset) -> IckOffset:
        self._rest.begin()
        return start

    def _release(self) -> bool:
        """Let others have the ick shards; say whether some may not have been held any more."""
        leases, self._leases = self._leases, None
        if leases is None:
            return False
        try:
            return bool(leases.release())
        except (RedisError, OSError):
            # They end by themselves. Nobody knows whether they had ended before.
            return True


def _consumer(offset: IckOffset) -> str:
    return f"spark query {offset.query}"


def _refuse_others(
    name: str, consumer: str, shards: list[ShardLook], is_own_too: bool = False
) -> None:
    """Raise NoLease if another query holds ick shards, or, where asked, a successor of this one."""
    for each in shards:
        if not each.left_ms or (each.consumer == consumer and not is_own_too):
            continue
        left = f"{each.left_ms / 1000:.0f} s"
        if each.consumer == consumer:
            raise NoLease(
                f"format {FORMAT!r}: another run of this query (with the same checkpoint) has taken"
                f" over {name!r} and holds its leases for another {left}: this one ends,"
                " and nothing is lost"
            )
        raise NoLease(
            f"format {FORMAT!r}: {name!r} is being read by another consumer, {each.consumer!r},"
            f" whose leases last for another {left}, and longer while it runs: stop that one and"
            " start this query again after that, let it wait by the option 'waitForLeaseSeconds',"
            " or give each query a ShardedIck of its own"
        )
