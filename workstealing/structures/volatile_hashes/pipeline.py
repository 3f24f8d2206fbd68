"""Hash commands, and the user's own, queued for one round trip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import RedisError, ResponseError

from workstealing.errors import LayoutError
from workstealing.store.operations import Operation, Steps, as_layout_error, drive, drive_async
from workstealing.store.pipeline import PlainCommands, queue_plain
from workstealing.store.twin import is_cluster
from workstealing.structures.namespaces.layout import Layout
from workstealing.structures.volatile_hashes.surface import QueuedSurface

if TYPE_CHECKING:
    from workstealing.structures.volatile_hashes.hashes import AsyncVolatileHashes, VolatileHashes

Reader = Callable[[Any], Any]
# (method, args, options) of the user's own command; ("", args, options) of a hash command.
Queued = tuple[str, tuple[Any, ...], dict[str, Any]]


def _left_out(reply: Any) -> Any:
    """Mark a reply that the user has not asked for."""
    return reply


class _Pipeline(QueuedSurface):
    """What both forms of a pipeline share; see `HashPipeline`."""

    def __init__(self, hashes: Any, transaction: bool) -> None:
        self._hashes = hashes
        self._transaction = transaction
        self._queue: list[Queued] = []
        self.plain: Any = PlainCommands(self.queue)

    def __len__(self) -> int:
        """Return how many commands are queued."""
        return len(self._queue)

    def __bool__(self) -> bool:
        """Return True: a pipeline is a thing, however little is queued on it."""
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)

    def queue(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Self:
        """Queue one of the user's own commands, by the name of redis-py's method."""
        self._queue.append((method, args, options))
        return self

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue one hash command; what all the methods end in. Returns the pipeline."""
        self._queue.append(("", args, options))
        return self

    def reset(self) -> None:
        """Forget what is queued."""
        self._queue = []

    def _layout_steps(self) -> Steps[Layout]:
        layout: Layout = yield from self._hashes.layout_steps()
        commands = [args for method, args, _ in self._queue if not method]
        layout = yield from self._hashes.register_steps(layout, commands)
        return layout

    def _fill(self, layout: Layout, queue: Sequence[Queued]) -> tuple[Any, list[Reader | None]]:
        """Return redis-py's own pipeline with everything queued, and the readers of its replies."""
        client = self._hashes.client
        on_cluster = is_cluster(client)
        target = client.pipeline() if on_cluster else client.pipeline(transaction=self._transaction)
        readers: list[Reader | None] = []
        sent: set[str] = set()

        def send(operation: Operation, read: Reader) -> None:
            # The first use of a script carries its text, so that the server knows it for the rest;
            # on a cluster each use does, because each may go to another node.
            known = operation.script.sha in sent and not on_cluster
            target.execute_command(*(operation.by_digest() if known else operation.by_text()))
            sent.add(operation.script.sha)
            readers.append(read)

        translator = self._hashes.translator
        for method, args, options in queue:
            if method:
                queue_plain(target, method, args, options)
                readers.append(None)
                continue
            if layout.is_emulated:
                operation = translator.translate(layout, args, options)
                send(operation, operation.read)
                continue
            if layout.is_migrating:
                for operation in translator.moves(layout, args):
                    send(operation, _left_out)
            if args[0] in layout.missing:
                operation = translator.substitute(args)
                send(operation, operation.read)
            else:
                target.execute_command(*args, **options)
                readers.append(None)
        return target, readers

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

    @staticmethod
    def _results(replies: list[Any], readers: list[Reader | None]) -> list[Any]:
        """Return what the user is shown of the replies, errors in their places."""
        results: list[Any] = []
        for reply, read in zip(replies, readers, strict=True):
            if read is _left_out and not isinstance(reply, Exception):
                continue
            result = reply
            if isinstance(reply, ResponseError) and read is not None:
                result = as_layout_error(reply) or reply
            elif read is not None and not isinstance(reply, Exception):
                result = read(reply)
            results.append(result)
        return results

    @staticmethod
    def _checked(results: list[Any], raise_on_error: bool) -> list[Any]:
        """Return the results; raise the first error among them if errors are to be raised."""
        if raise_on_error:
            for position, result in enumerate(results, 1):
                if isinstance(result, Exception):
                    if isinstance(result, RedisError):
                        result.args = (f"command {position} of the pipeline: {result}",)
                    raise result
        return results


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
            target, readers = self._fill(layout, queue)
            results = self._results(target.execute(raise_on_error=False), readers)
            refused = self._refused(queue, results) if layout.is_emulated else []
            if refused:
                layout = drive(self._hashes.client, self._hashes.layout_steps(again=True))
                if not layout.is_emulated:
                    target, readers = self._fill(layout, [queue[i] for i in refused])
                    again = self._results(target.execute(raise_on_error=False), readers)
                    for position, result in zip(refused, again, strict=True):
                        results[position] = result
            return self._checked(results, raise_on_error)
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
            target, readers = self._fill(layout, queue)
            results = self._results(await target.execute(raise_on_error=False), readers)
            refused = self._refused(queue, results) if layout.is_emulated else []
            if refused:
                layout = await drive_async(
                    self._hashes.client, self._hashes.layout_steps(again=True)
                )
                if not layout.is_emulated:
                    target, readers = self._fill(layout, [queue[i] for i in refused])
                    again = self._results(await target.execute(raise_on_error=False), readers)
                    for position, result in zip(refused, again, strict=True):
                        results[position] = result
            return self._checked(results, raise_on_error)
        finally:
            self.reset()
