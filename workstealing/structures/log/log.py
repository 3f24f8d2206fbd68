"""A log: entries in their order, each with an offset that it keeps for ever."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar, overload

from redis.exceptions import ResponseError

from workstealing.store.blocking import AsyncAsker, ask, checked_block
from workstealing.store.operations import Steps, as_layout_error, drive, drive_async
from workstealing.structures.log.appending import Appending
from workstealing.structures.log.codecs import decode_all
from workstealing.structures.log.deleting import Deleting
from workstealing.structures.log.facts import Describing, LogFacts
from workstealing.structures.log.group import AsyncLogGroup, LogGroup
from workstealing.structures.log.iterating import checked_iteration, iterate, iterate_async
from workstealing.structures.log.reading import LogInfo, Reading, checked_read
from workstealing.structures.log.waiting import Patience, block_command, checked_wait

# What a call gives back: the result, or something to await.
_IntT = TypeVar("_IntT")
_BoolT = TypeVar("_BoolT")
_FactsT = TypeVar("_FactsT")
_EntriesT = TypeVar("_EntriesT")
_InformedT = TypeVar("_InformedT")
_GroupT = TypeVar("_GroupT")


class _Log(
    Appending,
    Reading,
    Deleting,
    Describing,
    Generic[_IntT, _BoolT, _FactsT, _EntriesT, _InformedT, _GroupT],
):
    """What the blocking and the asyncio form have in common."""

    _group_kind: Callable[..., _GroupT]

    def append(self, *entries: Any, backlog: int | None = None) -> _IntT:
        """Append entries behind the last one, all or none.

        Arguments: entries: 1 to 10,000, of 512 MiB together at most; bytes, or what the codec
        takes; backlog: evict whole blocks while at least so many entries stay. Returns: the offset
        of the first; those of the others follow without a gap. Errors: ConfigurationError;
        LayoutError; those of redis-py, of a full server for instance: then nothing is written,
        except that after a lost connection it may be. Who repeats it then appends twice, and
        redis-py does so by itself: give it a client without retries where that matters. One round
        trip; one more when others have filled a block, or somebody has begun to wait in a group,
        since the last call; one more for each 64 groups beyond the first 64 in which somebody
        waits. About 12 Redis commands, three for each block and some 15 for each such group.
        """
        appended: _IntT = self.run(self.append_steps(entries, backlog))
        return appended

    @overload
    def read(
        self, offset: int, count: int = 1, block_ms: float = 0, with_info: Literal[False] = False
    ) -> _EntriesT: ...

    @overload
    def read(
        self, offset: int, count: int = 1, block_ms: float = 0, *, with_info: Literal[True]
    ) -> _InformedT: ...

    @overload
    def read(
        self, offset: int, count: int, block_ms: float, with_info: Literal[True]
    ) -> _InformedT: ...

    def read(
        self, offset: int, count: int = 1, block_ms: float = 0, with_info: bool = False
    ) -> Any:
        """Return entries from an offset on; None stands for each that was evicted.

        Arguments: offset: of the first; a negative one counts from the end, -1 being the last
        entry; count: how many at most, 0 for none; block_ms: how long to wait for the entry of that
        very offset if it has not come yet, 0 for not at all; with_info: return a pair of `LogInfo`
        and the entries, so that a count of 0 gives only that. Returns: a list, which ends where
        the log does. Errors: ConfigurationError; LayoutError; MissingExtraError for a block whose
        compression is not installed here; DamagedBlockError; UndecodableEntryError for an entry
        that another codec has written. One round trip for each MiB, 5,000 entries or 8 blocks; one
        more if the client knows too little of the log. Two to four Redis commands for each block,
        wherever in the log it is. Each round trip is a look of its own: what is evicted before the
        last of them may be None there though it was available at the first.
        """
        first, most = checked_read(offset, count)
        return self._read_on(first, most, Patience(checked_block(block_ms)), bool(with_info))

    def _result(
        self, info: LogInfo, found: list[bytes | None], with_info: bool
    ) -> list[Any] | tuple[LogInfo, list[Any]]:
        values = decode_all(self.codec, found, info.offset)
        return (info, values) if with_info else values

    def _read_on(self, offset: int, count: int, patience: Patience, with_info: bool) -> Any:
        """Look, wait and look again, until something is found or the time is over."""
        raise NotImplementedError

    def group(
        self,
        name: str | bytes,
        start: str | int = "first",
        acknowledged: bool = False,
        idle_s: float = 60.0,
        max_attempts: int = 5,
    ) -> _GroupT:
        """Return a group of readers that share the entries; see `LogGroup`. No round trip."""
        return self._group_kind(self, name, start, acknowledged, idle_s, max_attempts)

    def evict(self, offset: int | None = None, *, keep: int | None = None) -> _IntT:
        """Evict old entries: those up to and including an offset, or all but the last ones.

        They are gone for readers at once, whoever reads; their memory goes by whole blocks. All
        other entries keep their offsets. Arguments: one of offset, 0 or more, and keep: how many
        entries stay. Returns: how many were evicted. Errors: ConfigurationError; LayoutError. One
        round trip for each 100 blocks, and one more if the client knows too little of the log; if
        it dies in between, the next eviction or LogTrimmer frees what is left.
        """
        evicted: _IntT = self.run(self.evict_steps(offset, keep))
        return evicted

    def length(self) -> _IntT:
        """Say how many entries are available: last() - first() + 1. One round trip."""
        length: _IntT = self.run(self._length_steps())
        return length

    def first(self) -> _IntT:
        """Return the offset of the first available entry.

        If there is none, it is the offset that the next entry will have. One round trip.
        """
        first: _IntT = self.run(self._first_steps())
        return first

    def last(self) -> _IntT:
        """Return the offset of the last entry, first() - 1 if there is none. One round trip."""
        last: _IntT = self.run(self._last_steps())
        return last

    def info(self) -> _FactsT:
        """Say what the log consists of: a `LogFacts`.

        Errors: LayoutError. Two round trips; a Redis command for each block, at most 128.
        """
        facts: _FactsT = self.run(self.facts_steps())
        return facts

    def delete(self) -> _BoolT:
        """Delete the log with its entries, its groups and their dead.

        Returns: whether there was one. Errors: LayoutError, also if it is appended to faster than
        it can be deleted. One round trip for each 100 blocks, and three more; not atomic, but who
        appends meanwhile loses nothing that a reader could still have found.
        """
        deleted: _BoolT = self.run(self.delete_steps())
        return deleted

    def _length_steps(self) -> Steps[int]:
        info = yield from self.info_steps()
        return info.last - info.first + 1

    def _first_steps(self) -> Steps[int]:
        return (yield from self.info_steps()).first

    def _last_steps(self) -> Steps[int]:
        return (yield from self.info_steps()).last


class Log(_Log[int, bool, LogFacts, list[Any], tuple[LogInfo, list[Any]], LogGroup]):
    """A log: entries in their order, each with an offset that it keeps for ever.

    Offsets are 0, 1, 2, ... without a gap, however many append at once. Blocks of entries are lists
    while they are written to; `LogCompactor` makes a string of each full one, and compresses those
    that have gone cold. The cost of a read does not depend on where it is.

    Arguments: client: a redis.Redis or redis.RedisCluster (`AsyncLog` takes an asyncio client);
    name: the log's; all its keys share one hash slot, and on a cluster a name with a lone brace is
    refused. block: how many entries a block has, 1 to 100,000, if this client makes the log; one
    that exists keeps its own. codec: None for bytes, "json", "msgpack", or an object with encode()
    and decode(). cache_blocks: how many blocks that were sent as a whole are kept here.
    clock_shift_ms: for tests.

    Makes no connection before the first call. Attributes: name: the log's, as a text.

    Source: Redis' RCP 11, the proposal that streams came of, with its logical offsets and the
    compression of blocks.
    """

    _is_async_client: Literal[False] = False
    _group_kind = LogGroup

    def run(self, steps: Steps[Any]) -> Any:
        """Run steps and return what they return; a script's refusal becomes a LayoutError."""
        try:
            return drive(self.client, steps)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    def iterate(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False, prefetch: int = 1
    ) -> Iterator[Any]:
        """Yield the entries start..stop-1 in order, or from the last to the first.

        None stands for each that was evicted. What is appended meanwhile is not part of it: see
        `read` with block_ms for that. If the log is deleted and made anew meanwhile, what follows
        is the new one's. Arguments: start, stop: offsets, negative ones from the end, clamped as
        Python's slices are; reverse; prefetch: how many reads are made ahead, by a
        thread. Errors: ConfigurationError; those of `read`. A round trip at first, and one for each
        block, none of them read twice; several small blocks are read at a time.
        """
        checked_iteration(start, stop, prefetch)
        info = self.run(self.info_steps())
        return iterate(
            self._load,
            (info.first, info.last + 1),
            self.known.block,
            start,
            stop,
            reverse=reverse,
            prefetch=prefetch,
        )

    def __iter__(self) -> Iterator[Any]:
        """Yield all entries in order, from offset 0 on, None for each evicted one; see `iterate`.

        So enumerate() tells the offsets; `iterate(log.first())` begins with what is there.
        """
        return self.iterate()

    def __reversed__(self) -> Iterator[Any]:
        """Yield all entries from the last to offset 0; see `iterate`."""
        return self.iterate(reverse=True)

    def _load(self, offset: int, number: int) -> tuple[LogInfo, list[Any]]:
        return self.read(offset, number, with_info=True)

    def _read_on(self, offset: int, count: int, patience: Patience, with_info: bool) -> Any:
        while True:
            info, found = self.run(self.read_steps(offset, count))
            seconds = None if found or not count else patience.next_seconds()
            if seconds is None:
                return self._result(info, found, with_info)
            self.wait(block_command(self.keys, info.offset, seconds), seconds)

    def wait(self, command: tuple[Any, ...], seconds: float) -> Any:
        """Send a command that blocks, on a connection of its own; see `ask`.

        For the package itself: who waits for an entry calls `read` with block_ms. Errors:
        ConfigurationError for what is no command, or no time.
        """
        checked_wait(command, seconds)
        return ask(self.twin, self.keys.slot, command, seconds)


class AsyncLog(
    _Log[
        Awaitable[int],
        Awaitable[bool],
        Awaitable[LogFacts],
        Awaitable[list[Any]],
        Awaitable[tuple[LogInfo, list[Any]]],
        AsyncLogGroup,
    ]
):
    """A `Log` on a redis.asyncio client: every method is awaited."""

    _is_async_client: Literal[True] = True
    _group_kind = AsyncLogGroup

    @cached_property
    def _asker(self) -> AsyncAsker:
        return AsyncAsker(self.twin)

    async def aclose(self) -> None:
        """Close the connections on which reads have waited."""
        await self._asker.close()

    async def iterate(
        self, start: int = 0, stop: int | None = None, *, reverse: bool = False, prefetch: int = 1
    ) -> AsyncGenerator[Any, None]:
        """Yield as `Log.iterate` does; what is read ahead are tasks."""
        checked_iteration(start, stop, prefetch)
        info = await self.run(self.info_steps())
        entries = iterate_async(
            self._load,
            (info.first, info.last + 1),
            self.known.block,
            start,
            stop,
            reverse=reverse,
            prefetch=prefetch,
        )
        async with aclosing(entries):
            async for entry in entries:
                yield entry

    async def __aiter__(self) -> AsyncGenerator[Any, None]:
        """Yield all entries in order, from offset 0 on; see `Log.iterate`."""
        async with aclosing(self.iterate()) as entries:
            async for entry in entries:
                yield entry

    async def _load(self, offset: int, number: int) -> tuple[LogInfo, list[Any]]:
        return await self.read(offset, number, with_info=True)

    async def run(self, steps: Steps[Any]) -> Any:
        """Run steps as `Log.run` does."""
        try:
            return await drive_async(self.client, steps)
        except ResponseError as error:
            raise as_layout_error(error) or error from None

    async def _read_on(self, offset: int, count: int, patience: Patience, with_info: bool) -> Any:
        while True:
            info, found = await self.run(self.read_steps(offset, count))
            seconds = None if found or not count else patience.next_seconds()
            if seconds is None:
                return self._result(info, found, with_info)
            await self.wait(block_command(self.keys, info.offset, seconds), seconds)

    async def wait(self, command: tuple[Any, ...], seconds: float) -> Any:
        """Send a command that blocks, on a connection of its own; see `Log.wait`."""
        checked_wait(command, seconds)
        return await self._asker.ask(self.keys.slot, command, seconds)
