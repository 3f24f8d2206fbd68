"""Adopts single hashes: gives their fields the deadlines that another program keeps for them."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redis.exceptions import OutOfMemoryError, ResponseError

from workstealing.errors import ConfigurationError, CrossSlotError, NotAdopted, Skipped
from workstealing.recruiting.slice import Slice
from workstealing.store.attempt import Attempt, attempt
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import key_slot, to_bytes
from workstealing.store.paging import BEGINNING
from workstealing.structures.due_index import DueIndex
from workstealing.structures.layout import scored
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes import AsyncVolatileHashes, VolatileHashes
from workstealing.structures.volatile_hashes.server_faults import LAST_DEADLINE_MS

# A deadline outside of these years is a mistaken unit: no Redis is that old, and no deadline that
# the server takes is later.
FIRST_MS, LAST_MS = 1_230_768_000_000, LAST_DEADLINE_MS
# A look at several hashes at once reads the small ones.
_SMALL_FIELDS, _LOOK_FIELDS = 64, 1000

# Whether a field exists, and its deadline in the namespace in ms.
_State = tuple[bool, float | None]

_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotAdopted)

DeadlineOf = Callable[[bytes, bytes, bytes], "float | dt.datetime | None"]
"""Takes a key, a field and its value; returns the field's deadline: see `AdoptHashes`."""


def full(error: Exception) -> Skipped:
    """Return the quiet end of a slice on a server whose memory is full."""
    skipped = Skipped("the server's memory is full, and an adoption only adds: free some first")
    skipped.__cause__ = error
    return skipped


class Pattern:
    """The pattern of the keys to adopt, and of the sorted sets beside them.

    Raises: ConfigurationError if it matches every hash, or if the two name no pairs of keys.
    """

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


def small_hashes(
    job_client: JobClient, node: Node, keys: Sequence[bytes], slice: Slice, *, reads_values: bool
) -> tuple[dict[bytes, dict[bytes, bytes]], list[bytes]]:
    """Return small hashes of a node, a thousand fields in all at most, and the other keys.

    Arguments:
        reads_values: otherwise values are empty.

    Neither result contains hashes that have gone. Two round trips.
    """
    slice.spend(len(keys))
    sizes = job_client.call(node, [("HLEN", key) for key in keys], Budget(slice.remaining()))
    small, others, fields = [], [], 0
    for key, size in zip(keys, sizes, strict=True):
        if not isinstance(size, int) or size > _SMALL_FIELDS or fields + size > _LOOK_FIELDS:
            others.append(key)
        elif size:
            fields += size
            small.append(key)
    if not small:
        return {}, others
    slice.spend(len(small))
    command = "HGETALL" if reads_values else "HKEYS"
    replies = job_client.call(node, [(command, key) for key in small], Budget(slice.remaining()))
    found = {}
    for key, reply in zip(small, replies, strict=True):
        if isinstance(reply, Exception):
            others.append(key)
        elif reply and reads_values:
            found[key] = dict(zip(reply[::2], reply[1::2], strict=True))
        elif reply:
            found[key] = dict.fromkeys(reply, b"")
    return found, others


class Adopter:
    """Gives the fields of single hashes their deadlines.

    Arguments:
        index: of the namespace.
        ends: says when fields end.
    """

    def __init__(
        self,
        hashes: VolatileHashes | AsyncVolatileHashes,
        index: DueIndex,
        pattern: Pattern,
        ends: Ends,
    ) -> None:
        self._hashes, self._index = hashes, index
        self._job_client, self._names, self._translator = (
            hashes.job_client,
            hashes.names,
            hashes.translator,
        )
        self.pattern = pattern
        self._unit_ms, self._deadline_of, self._ttl_ms = ends.unit_ms, ends.deadline_of, ends.ttl_ms
        self._asks_fields = ends.deadline_of is not None or ends.ttl_ms is not None

    def unfinished(
        self,
        layout: Layout | None,
        node: Node,
        keys: Sequence[bytes],
        slice: Slice,
    ) -> list[bytes]:
        """Return the hashes that may need something. Up to four round trips."""
        if not keys:
            return []
        beside = [self.pattern.beside(key) for key in keys]
        commands: list[Command] = [
            ("EXISTS", other) if other is not None and self._same_slot(key, other) else ("TIME",)
            for key, other in zip(keys, beside, strict=True)
        ]
        found: set[bytes] = set()
        if beside[0] is not None:
            slice.spend(len(commands))
            replies = self._job_client.call(node, commands, Budget(slice.remaining()))
            # TIME's reply stands for a sorted set in another slot: the visit refuses the hash.
            found.update(key for key, reply in zip(keys, replies, strict=True) if reply != 0)
        if self._asks_fields:
            found.update(self._with_fields(layout, node, keys, slice))
        return [key for key in keys if key in found]

    def _with_fields(
        self, layout: Layout | None, node: Node, keys: Sequence[bytes], slice: Slice
    ) -> Iterator[bytes]:
        """Yield the hashes with fields to adopt, and all that are large. Three round trips.

        Counts of fields and deadlines would not tell: deadlines outlive fields that others delete,
        and the old program may have written a value with another deadline.
        """
        reads_values = self._deadline_of is not None
        small, others = small_hashes(self._job_client, node, keys, slice, reads_values=reads_values)
        yield from others
        if not small:
            return
        commands = [self._ask_state(layout, key, list(values)) for key, values in small.items()]
        slice.spend(len(commands))
        replies = self._job_client.call(node, commands, Budget(slice.remaining()))
        for (key, values), reply in zip(small.items(), replies, strict=True):
            try:
                state = self._read_state(layout, list(values), reply)
                # The attempt knows the time.
                if isinstance(reply, Exception) or self._chosen(key, values, state, 0):
                    yield key
            except _UNREADABLE:
                yield key

    def _same_slot(self, key: bytes, beside: bytes) -> bool:
        if not self._job_client.is_cluster:
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
            with attempt(self._job_client, *keys, slice=slice, in_any_slot=True) as current:
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
            raise

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
        now = self._index.time_ms(clock)
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
        now = self._index.time_ms(clock)
        values = dict(zip(pairs[::2], pairs[1::2], strict=True))
        if not values:
            return now, [], rest
        state = self._state(current, layout, key, list(values), may_lack=False)
        return now, self._chosen(key, values, state, now), rest

    def _state(
        self,
        current: Attempt,
        layout: Layout | None,
        key: bytes,
        fields: Sequence[bytes],
        *,
        may_lack: bool = True,
    ) -> dict[bytes, _State]:
        """Return for each field whether it exists, and its deadline in the namespace."""
        ask = self._ask_state(layout, key, fields)
        asked = fields if may_lack and ask[0] == "ZMSCORE" else ()
        reply, *exist = current.read(ask, *(("HEXISTS", key, each) for each in asked))
        state = self._read_state(layout, fields, reply)
        for name, exists in zip(asked, exist, strict=True):
            state[name] = (exists == 1, state[name][1])
        return state

    def _ask_state(self, layout: Layout | None, key: bytes, fields: Sequence[bytes]) -> Command:
        if layout is not None and layout.is_native:
            return ("HPEXPIRETIME", key, "FIELDS", len(fields), *fields)
        return ("ZMSCORE", self._names.deadlines(key), *fields)

    def _read_state(
        self, layout: Layout | None, fields: Sequence[bytes], reply: Any
    ) -> dict[bytes, _State]:
        """Return for each field whether it exists, as far as the reply tells, and its deadline."""
        if isinstance(reply, Exception):
            return dict.fromkeys(fields, (False, None))
        pairs: Iterator[_State]
        if layout is not None and layout.is_native:
            times = reply or [-2] * len(fields)
            pairs = ((each != -2, None if each < 0 else float(each)) for each in times)
        else:
            pairs = ((True, None if score is None else float(score)) for score in reply)
        return dict(zip(fields, pairs, strict=True))

    def _chosen(
        self, key: bytes, values: Mapping[bytes, bytes], state: Mapping[bytes, _State], now: int
    ) -> list[tuple[bytes, int]]:
        """Return the fields to adopt for what their values say, or for their lack of a deadline."""
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
        return chosen

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


def _holds(deadline: int, state: _State, now: int) -> bool:
    """Say whether a field, by its state, is to be given a deadline that the program keeps of it.

    A field that has expired in the namespace stays expired. Otherwise the later deadline holds.
    """
    exists, held = state
    return exists and (held is None or now < held < deadline)


def _plausible(milliseconds: float, given: object) -> int:
    # NaN is in no range.
    if not FIRST_MS <= milliseconds <= LAST_MS:
        raise NotAdopted(f"the deadline {given!r} is not in the years 2009 to 4199: check the unit")
    return math.ceil(milliseconds)
