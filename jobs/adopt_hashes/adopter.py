"""Adopts single hashes: gives their fields the deadlines that another program keeps for them."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import ConfigurationError, CrossSlotError, NotAdopted, Skipped
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.operations import as_layout_error
from workstealing.store.paging import BEGINNING
from workstealing.store.twin import Node
from workstealing.structures.due_index import DueIndex, scored
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes

# A deadline outside of these years is a mistaken unit: no Redis is that old, and no deadline that
# the server takes is later.
FIRST_MS, LAST_MS = 1_230_768_000_000, 2**46 - 1

_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotAdopted)

DeadlineOf = Callable[[bytes, bytes, bytes], "float | dt.datetime | None"]
"""Takes a key, a field and its value; returns the field's deadline: see `AdoptHashes`."""


def full(error: Exception) -> Skipped:
    """Return the quiet end of a slice on a server whose memory is full."""
    skipped = Skipped("the server's memory is full, and an adoption only adds: free some first")
    skipped.__cause__ = error
    return skipped


class Pattern:
    """The pattern of the keys to adopt, and of the sorted sets beside them."""

    def __init__(self, pattern: str | bytes, sorted_sets: str | bytes | None) -> None:
        self.text = to_bytes(pattern)
        self._beside = None if sorted_sets is None else to_bytes(sorted_sets)
        if not re.sub(rb"\[.*?\]|[*?]", b"", self.text):
            raise ConfigurationError(
                f"the pattern {pattern!r} matches every hash of the server: give one with a part of"
                ' the names, such as "user:*"'
            )
        if self._beside is not None:
            for each in (self.text, self._beside):
                if each.count(b"*") != 1 or re.search(rb"[\[\]?\\]", each):
                    raise ConfigurationError(
                        f"the patterns {pattern!r} and {sorted_sets!r} do not name pairs of keys:"
                        " give each of them exactly one asterisk, and no other special character"
                    )
            if self.text == self._beside:
                raise ConfigurationError(
                    f"the hashes and their sorted sets cannot have the same names {pattern!r}"
                )
        self.digest = hashlib.sha256(repr((self.text, self._beside)).encode()).hexdigest()[:12]

    def matches(self, key: bytes) -> bool:
        """Say whether a key matches, as the server's SCAN does; only for plain patterns."""
        if re.search(rb"[\[\]?\\]", self.text):
            return True
        expression = b".*".join(re.escape(each) for each in self.text.split(b"*"))
        return re.fullmatch(expression, key, re.DOTALL) is not None

    def beside(self, key: bytes) -> bytes | None:
        """Return the key of a hash's own sorted set of deadlines, if the program has any."""
        if self._beside is None:
            return None
        first, last = self.text.split(b"*")
        middle = key[len(first) : len(key) - len(last)]
        return self._beside.replace(b"*", middle)


@dataclass(frozen=True, slots=True)
class Ends:
    """Says when fields end, as `AdoptHashes` takes it.

    Fields: unit_ms: of the scores in the program's sorted sets; deadline_of; ttl_ms.
    """

    unit_ms: int
    deadline_of: DeadlineOf | None
    ttl_ms: int | None


class Adopter:
    """Gives the fields of single hashes their deadlines.

    Arguments: hashes; index: of the namespace; pattern; ends: says when fields end.
    """

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        index: DueIndex,
        pattern: Pattern,
        ends: Ends,
    ) -> None:
        self._hashes, self._index = hashes, index
        self._twin, self._names, self._translator = hashes.twin, hashes.names, hashes.translator
        self.pattern = pattern
        self._unit_ms, self._deadline_of, self._ttl_ms = ends.unit_ms, ends.deadline_of, ends.ttl_ms
        self._asks_fields = ends.deadline_of is not None or ends.ttl_ms is not None

    def unfinished(
        self,
        layout: Layout | None,  # noqa: ARG002 - as `Serves` has it
        node: Node,
        keys: Sequence[bytes],
        slice: Slice,
    ) -> list[bytes]:
        """Return the hashes that may need something. At most one round trip."""
        if not keys or self._asks_fields:
            # No count of fields and deadlines tells: deadlines outlive fields that others delete,
            # and the old program may have given a value another deadline.
            return list(keys)
        beside = [self.pattern.beside(key) or b"" for key in keys]
        asked = [self._same_slot(key, other) for key, other in zip(keys, beside, strict=True)]
        commands: list[Command] = [
            ("EXISTS", other) for other, is_asked in zip(beside, asked, strict=True) if is_asked
        ]
        slice.spend(len(commands))
        replies = iter(self._twin.call(node, commands, Budget(slice.remaining())))
        return [
            key
            for key, is_asked in zip(keys, asked, strict=True)
            if not is_asked or next(replies) != 0
        ]

    def _same_slot(self, key: bytes, beside: bytes) -> bool:
        if not self._twin.is_cluster:
            return True
        return key_slot(key) == key_slot(beside)

    def adopt(
        self, layout: Layout | None, key: bytes, slice: Slice, most: int, start: bytes
    ) -> tuple[int, bytes | None]:
        """Adopt at most about `most` fields of a hash, from a cursor of HSCAN on.

        Returns: how many, and the cursor to go on from, None at the end. Raises: Aborted if
        anybody wrote the hash meanwhile; NotAdopted; OutOfTime; Skipped if the memory is full.
        """
        assert layout is not None, "an adoption writes the layout down first"
        if layout.is_emulated:
            self._index.drive(
                self._hashes.register_steps(layout, [("HSETEX", key)]), Budget(slice.remaining())
            )
        adopted = 0
        if self.pattern.beside(key) is not None:
            with self._attempt(key, slice) as current:
                _, chosen, members, size = self._in_sorted_set(current, layout, key, most)
                if members:
                    self._commit(current, layout, key, chosen, members)
                adopted = len(chosen)
                if size > len(members):
                    return adopted, start
        if not self._asks_fields:
            return adopted, None
        with self._attempt(key, slice) as current:
            _, chosen, rest = self._in_values(current, layout, key, max(1, most - adopted), start)
            if chosen:
                self._commit(current, layout, key, chosen, ())
        return adopted + len(chosen), None if rest == BEGINNING else rest

    def looked_at(
        self, layout: Layout | None, key: bytes, slice: Slice
    ) -> Iterator[tuple[bytes, int, int]]:
        """Yield the fields that would be adopted, their deadlines, and the server's time, in ms.

        Raises: NotAdopted; as `adopt`. Two round trips for each 256 fields.
        """
        found: set[bytes] = set()
        start, size = 0, 0 if self.pattern.beside(key) is None else 1
        while start < size:
            with self._attempt(key, slice) as current:
                now, chosen, _, size = self._in_sorted_set(current, layout, key, 256, start)
            start += 256
            yield from ((name, deadline, now) for name, deadline in chosen)
            if self._asks_fields:
                found.update(name for name, _ in chosen)
        rest = BEGINNING
        while self._asks_fields:
            with self._attempt(key, slice) as current:
                now, chosen, rest = self._in_values(current, layout, key, 256, rest)
            yield from ((name, at, now) for name, at in chosen if name not in found)
            if rest == BEGINNING:
                break

    @contextmanager
    def _attempt(self, key: bytes, slice: Slice) -> Iterator[Attempt]:
        """Make an attempt on a hash, its deadlines, and the program's sorted set of them.

        Every write of the program changes the hash or the sorted set.
        """
        beside = self.pattern.beside(key)
        keys = [key, self._names.deadlines(key), *([] if beside is None else [beside])]
        try:
            with attempt(self._twin, *keys, slice=slice, in_any_slot=True) as current:
                yield current
        except CrossSlotError as error:
            raise NotAdopted(
                f"its sorted set {beside!r} lies in another slot of the cluster"
            ) from error
        except OutOfMemoryError as error:
            raise full(error) from error
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                raise NotAdopted(
                    "it, or a key beside it, holds another type than expected"
                ) from error
            raise as_layout_error(error) or error from None

    def _in_sorted_set(
        self, current: Attempt, layout: Layout | None, key: bytes, most: int, start: int = 0
    ) -> tuple[int, list[tuple[bytes, int]], list[bytes], int]:
        """Return the time, the chosen fields, the members read from a rank on, and how many are.

        Two round trips, and one if there is nothing.
        """
        beside = self.pattern.beside(key)
        clock, members, size = current.read(
            ("TIME",), ("ZRANGE", beside, start, start + most - 1, "WITHSCORES"), ("ZCARD", beside)
        )
        now = self._index.milliseconds(clock)
        pairs = scored(members)
        if not pairs:
            return now, [], [], 0
        wanted = {name: self._from_score(score) for name, score in pairs}
        state = self._state(current, layout, key, list(wanted))
        chosen = []
        for name, deadline in wanted.items():
            if deadline is not None and _holds(deadline, state[name], now):
                chosen.append((name, deadline))
        return now, chosen, [name for name, _ in pairs], size

    def _in_values(
        self, current: Attempt, layout: Layout | None, key: bytes, most: int, start: bytes
    ) -> tuple[int, list[tuple[bytes, int]], bytes]:
        """Return the time, the chosen fields of a page of the hash, and the next cursor."""
        clock, (rest, pairs) = current.read(("TIME",), ("HSCAN", key, start, "COUNT", most))
        now = self._index.milliseconds(clock)
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if not values:
            return now, [], rest
        state = self._state(current, layout, key, list(values), may_lack=False)
        chosen = []
        for name, value in values.items():
            deadline = None
            try:
                deadline = self._in_value(key, name, value)
            except _UNREADABLE:
                # The new program may write values that the function does not know.
                if state[name][1] is None:
                    raise
            if deadline is None and self._ttl_ms is not None and state[name] == (True, None):
                deadline = now + self._ttl_ms
            if deadline is not None and _holds(deadline, state[name], now):
                chosen.append((name, deadline))
        return now, chosen, rest

    def _state(
        self,
        current: Attempt,
        layout: Layout | None,
        key: bytes,
        fields: Sequence[bytes],
        *,
        may_lack: bool = True,
    ) -> dict[bytes, tuple[bool, float | None]]:
        """Return for each field whether it exists, and its deadline in the namespace."""
        if layout is not None and layout.is_native:
            command = ("HPEXPIRETIME", key, "FIELDS", len(fields), *fields)
            (times,) = current.read(command)
            times = times or [-2] * len(fields)
            pairs = [(each != -2, None if each < 0 else float(each)) for each in times]
        else:
            asked = fields if may_lack else ()
            held, *exist = current.read(
                ("ZMSCORE", self._names.deadlines(key), *fields),
                *(("HEXISTS", key, each) for each in asked),
            )
            pairs = [
                (exists == 1, None if score is None else float(score))
                for score, exists in zip(held, exist or [1] * len(fields), strict=True)
            ]
        return dict(zip(fields, pairs, strict=True))

    def _commit(
        self,
        current: Attempt,
        layout: Layout,
        key: bytes,
        chosen: Collection[tuple[bytes, int]],
        members: Collection[bytes],
    ) -> None:
        beside = self.pattern.beside(key)
        if layout.is_native or not chosen:
            commands: list[Command] = [
                ("HPEXPIREAT", key, deadline, "FIELDS", 1, name) for name, deadline in chosen
            ]
            if members:
                commands.append(("ZREM", beside, *members))
            current.commit(*commands)
            return
        keys = [*self._names.for_writing(key, layout), *([beside] if members else [])]
        flat = [part for name, deadline in chosen for part in (deadline, name)]
        script = self._translator.script("volatile_hashes/adopt")
        values = (layout.mark, len(chosen), *flat, *members)
        current.commit(("EVAL", script.body, len(keys), *keys, *values))

    def _from_score(self, score: float) -> int | None:
        if math.isinf(score) and score > 0:
            return None
        return _plausible(score * self._unit_ms, score)

    def _in_value(self, key: bytes, name: bytes, value: bytes) -> int | None:
        result = None if self._deadline_of is None else self._deadline_of(key, name, value)
        if result is None:
            return None
        if isinstance(result, dt.datetime) and result.tzinfo is not None:
            return _plausible(result.timestamp() * 1000, result)
        if isinstance(result, int | float) and not isinstance(result, bool):
            return _plausible(result * 1000, result)
        raise ConfigurationError(
            f"deadline_of returned {result!r} for the field {name!r} of {key!r}: return seconds"
            " since the epoch, an aware datetime, or None"
        )


def _holds(deadline: int, state: tuple[bool, float | None], now: int) -> bool:
    """Say whether a field, by its state, is to be given a deadline that the program keeps of it.

    What has expired in the namespace stays expired. Otherwise the later deadline holds.
    """
    exists, held = state
    return exists and (held is None or now < held < deadline)


def _plausible(milliseconds: float, given: object) -> int:
    # NaN is in no range.
    if not FIRST_MS <= milliseconds <= LAST_MS:
        raise NotAdopted(f"the deadline {given!r} is not in the years 2009 to 4199: check the unit")
    return math.ceil(milliseconds)
