"""What all pipelines of this package share: operations and the user's own commands, one round trip.

Everything is kept until `execute`, because a structure may have to look at its layout first, which
on an asyncio client must be awaited; then redis-py's own pipeline is filled and sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

from redis.exceptions import RedisError

from workstealing.errors import ConfigurationError
from workstealing.store.operations import Operation, Plan, as_layout_error
from workstealing.store.twin import is_cluster

QueuedT = TypeVar("QueuedT")

_IMMEDIATE = frozenset(
    {"watch", "unwatch", "multi", "immediate_execute_command", "pipeline", "transaction"}
)


class PlainCommands:
    """The user's own commands, put off until `execute`: whatever redis-py's pipelines take.

    Arguments: queue: called with a method's name, its arguments and its options; returns the
    pipeline.
    """

    def __init__(self, queue: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in _IMMEDIATE or name.startswith("_"):
            raise AttributeError(f"{name} has no place on a pipeline: it only queues commands")
        return lambda *args, **options: self._queue(name, args, options)


def queue_plain(target: Any, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Queue one of the user's own commands on redis-py's pipeline, by the name of its method.

    Raises: ConfigurationError for a method that queues none or several (hscan_iter, lock), because
    the replies could not be told apart; nothing has been sent then.
    """
    before = len(target)
    add = getattr(target, method, None)
    if callable(add):
        add(*args, **options)
    if len(target) != before + 1:
        raise ConfigurationError(
            f"{method} queues no command, or several, so it has no place on a pipeline, and nothing"
            " was sent: queue one command at a time"
        )


class Filling:
    """One of redis-py's pipelines while it is filled, and how its replies are read.

    Arguments: client: whose pipeline; transaction: whether it is one MULTI/EXEC (on a cluster: no).
    """

    def __init__(self, client: Any, transaction: bool) -> None:
        self._on_cluster = is_cluster(client)
        options = {} if self._on_cluster else {"transaction": transaction}
        self.target = client.pipeline(**options)
        self._sent: set[str] = set()
        # For each result: how many replies it takes, and how they are read; None: as they are.
        self._readers: list[tuple[int, Callable[[list[Any]], Any] | None]] = []

    def plain(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Add one of the user's own commands, by the name of redis-py's method."""
        queue_plain(self.target, method, args, options)
        self._readers.append((1, None))

    def plan(self, plan: Plan) -> None:
        """Add a plan: its operations, whose replies make one result."""
        self._send(plan.operations)
        self._readers.append((len(plan.operations), plan.read))

    def command(
        self, args: tuple[Any, ...], options: dict[str, Any], before: Sequence[Operation] = ()
    ) -> None:
        """Add one of redis-py's commands, behind operations whose replies nobody asked for."""
        self._send(before)
        self.target.execute_command(*args, **options)
        self._readers.append((len(before) + 1, itemgetter(-1)))

    def _send(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            # The first use of a script carries its text, so that the server knows it for the rest;
            # on a cluster each use does, because each may go to another node.
            known = operation.script.sha in self._sent and not self._on_cluster
            self.target.execute_command(*(operation.by_digest() if known else operation.by_text()))
            self._sent.add(operation.script.sha)

    def results(self, replies: list[Any]) -> list[Any]:
        """Return what the user is shown of the replies, errors in their places."""
        results: list[Any] = []
        start = 0
        for count, read in self._readers:
            mine = replies[start : start + count]
            start += count
            if read is None:
                results.append(mine[0])
                continue
            error = next((reply for reply in mine if isinstance(reply, Exception)), None)
            if error is None:
                results.append(read(mine))
            else:
                results.append(as_layout_error(error) or error)
        return results


def checked_results(results: list[Any], raise_on_error: bool) -> list[Any]:
    """Return results; raise the first error among them if errors are to be raised."""
    if raise_on_error:
        for position, result in enumerate(results, 1):
            if isinstance(result, Exception):
                if isinstance(result, RedisError):
                    result.args = (f"command {position} of the pipeline: {result}",)
                raise result
    return results


class CommandQueue(Generic[QueuedT]):
    """What a pipeline keeps until `execute`; a method it does not have is the user's own command.

    Arguments: queue_plain: queues one of the user's own commands; see `PlainCommands`.
    """

    def __init__(self, queue_plain: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self._queue: list[QueuedT] = []
        self.plain: Any = PlainCommands(queue_plain)

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

    def reset(self) -> None:
        """Forget what is queued."""
        self._queue = []


class PlanPipeline(CommandQueue[Callable[[Filling], None]]):
    """A queue of plans and of the user's own commands, for structures without a layout to look at.

    Arguments: client; transaction: whether `execute` sends one MULTI/EXEC. What a structure's own
    methods queue goes in by `queue_plan`; every method of redis-py's pipelines queues the user's
    own command.
    """

    def __init__(self, client: Any, transaction: bool) -> None:
        super().__init__(self._queue_plain)
        self._client = client
        self._transaction = transaction

    def queue_plan(self, plan: Plan) -> Self:
        """Queue a structure's own operations; their result is one of those of `execute`."""
        self._queue.append(lambda filling: filling.plan(plan))
        return self

    def _queue_plain(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Self:
        self._queue.append(lambda filling: filling.plain(method, args, options))
        return self

    def _filled(self) -> Filling:
        filling = Filling(self._client, self._transaction)
        for add in self._queue:
            add(filling)
        return filling


class BlockingPlanPipeline(PlanPipeline):
    """A `PlanPipeline` on a blocking client."""

    def __enter__(self) -> Self:
        """Return the pipeline."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order.

        Arguments: raise_on_error: whether the first error is raised, or returned in its place. One
        round trip.
        """
        try:
            if not self._queue:
                return []
            filling = self._filled()
            replies = filling.target.execute(raise_on_error=False)
            return checked_results(filling.results(replies), raise_on_error)
        finally:
            self.reset()


class AsyncPlanPipeline(PlanPipeline):
    """A `PlanPipeline` on an asyncio client."""

    async def __aenter__(self) -> Self:
        """Return the pipeline."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Forget what was not executed."""
        self.reset()

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results; see `BlockingPlanPipeline.execute`."""
        try:
            if not self._queue:
                return []
            filling = self._filled()
            replies = await filling.target.execute(raise_on_error=False)
            return checked_results(filling.results(replies), raise_on_error)
        finally:
            self.reset()
