"""Hash commands, and the user's own, queued for one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from workstealing.errors import LayoutError
from workstealing.store.operations import Plan, Steps, drive, drive_async
from workstealing.store.pipeline import CommandQueue, Filling, checked_results
from workstealing.structures.namespace import Layout
from workstealing.structures.volatile_hashes.commands import require_users_keys
from workstealing.structures.volatile_hashes.surface import QueuedSurface

if TYPE_CHECKING:
    from workstealing.structures.volatile_hashes.hashes import AsyncVolatileHashes, VolatileHashes

# (method, args, options) of the user's own command; ("", args, options) of a hash command.
Queued = tuple[str, tuple[Any, ...], dict[str, Any]]


class _Pipeline(CommandQueue[Queued], QueuedSurface):
    """What both forms of a pipeline share; see `HashPipeline`."""

    def __init__(self, hashes: Any, transaction: bool) -> None:
        super().__init__(self.queue)
        self._hashes = hashes
        self._transaction = transaction

    def queue(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Self:
        """Queue one of the user's own commands, by the name of redis-py's method."""
        self._queue.append((method, args, options))
        return self

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue one hash command; what all the methods end in. Returns the pipeline."""
        require_users_keys(args)
        self._queue.append(("", args, options))
        return self

    def _layout_steps(self) -> Steps[Layout]:
        layout: Layout = yield from self._hashes.layout_steps()
        commands = [args for method, args, _ in self._queue if not method]
        layout = yield from self._hashes.register_steps(layout, commands)
        return layout

    def _fill(self, layout: Layout, queue: Sequence[Queued]) -> Filling:
        """Return redis-py's own pipeline with everything queued."""
        filling = Filling(self._hashes.client, self._transaction)
        translator = self._hashes.translator
        for method, args, options in queue:
            if method:
                filling.plain(method, args, options)
            elif layout.is_emulated:
                filling.plan(Plan((translator.translate(layout, args, options),)))
            else:
                moves = translator.moves(layout, args) if layout.is_migrating else []
                if args[0] in layout.missing:
                    filling.plan(Plan((*moves, translator.substitute(args)), itemgetter(-1)))
                else:
                    filling.command(args, options, before=moves)
        return filling

    def _refused(self, queue: Sequence[Queued], results: Sequence[Any]) -> list[int]:
        """Return the positions that must run again after the layout has turned out to be old.

        Those are the hash commands that were refused, whose scripts did nothing, and the reads of
        the same hashes behind them. What has run, the user's own commands too, is not among them.
        """
        names: set[bytes] = set()
        again: list[int] = []
        translator = self._hashes.translator
        for position, ((method, args, _), result) in enumerate(zip(queue, results, strict=True)):
            if method:
                continue
            if isinstance(result, LayoutError):
                names.update(translator.names_in(args))
                again.append(position)
            elif translator.only_reads(args) and names.intersection(translator.names_in(args)):
                again.append(position)
        return again


class HashPipeline(_Pipeline):
    """Hash commands and the user's own, sent together by `execute` in one round trip.

    The methods are those of `VolatileHashes`; every other method of redis-py's pipelines queues the
    user's own command (``p.incr("visits")``), and so does ``p.plain.hset(...)`` where the name is
    taken by the hash's own. Use as a context manager, or call `reset` when it is not executed.
    """

    _hashes: VolatileHashes

    def __enter__(self) -> Self:
        """Return the pipeline."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued and return the replies in order.

        Arguments: raise_on_error: whether the first error reply is raised, or returned in its
        place. Errors: as the commands'; those of a transaction are redis-py's own. One round trip
        (at a namespace's or a cluster slot's first use, those that the setting up takes). When the
        namespace has begun to migrate and this process did not know, the hash commands that were
        refused go their new way in a second one, behind the rest and outside its transaction.
        """
        queue = self._queue
        try:
            layout = drive(self._hashes.client, self._layout_steps())
            if not queue:
                return []
            filling = self._fill(layout, queue)
            results = filling.results(filling.target.execute(raise_on_error=False))
            refused = self._refused(queue, results) if layout.is_emulated else []
            if refused:
                layout = drive(self._hashes.client, self._hashes.layout_steps(again=True))
                if not layout.is_emulated:
                    filling = self._fill(layout, [queue[i] for i in refused])
                    again = filling.results(filling.target.execute(raise_on_error=False))
                    for position, result in zip(refused, again, strict=True):
                        results[position] = result
            return checked_results(results, raise_on_error)
        finally:
            self.reset()


class AsyncHashPipeline(_Pipeline):
    """A `HashPipeline` whose `execute` is awaited."""

    _hashes: AsyncVolatileHashes

    async def __aenter__(self) -> Self:
        """Return the pipeline."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued and return the replies in order; see `HashPipeline.execute`."""
        queue = self._queue
        try:
            layout = await drive_async(self._hashes.client, self._layout_steps())
            if not queue:
                return []
            filling = self._fill(layout, queue)
            results = filling.results(await filling.target.execute(raise_on_error=False))
            refused = self._refused(queue, results) if layout.is_emulated else []
            if refused:
                layout = await drive_async(
                    self._hashes.client, self._hashes.layout_steps(again=True)
                )
                if not layout.is_emulated:
                    filling = self._fill(layout, [queue[i] for i in refused])
                    again = filling.results(await filling.target.execute(raise_on_error=False))
                    for position, result in zip(refused, again, strict=True):
                        results[position] = result
            return checked_results(results, raise_on_error)
        finally:
            self.reset()
