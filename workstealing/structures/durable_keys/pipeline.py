"""Commands on durable keys, and the user's own, queued for one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workstealing.store.operations import Steps, drive, drive_async
from workstealing.store.pipeline import AsyncPlanPipeline, BlockingPlanPipeline, PlanPipeline
from workstealing.structures.durable_keys.commands import require_users_keys
from workstealing.structures.durable_keys.surface import BlockingSurface
from workstealing.structures.namespace import Layout

if TYPE_CHECKING:
    from workstealing.structures.durable_keys.keys import AsyncDurableKeys, DurableKeys


class _Pipeline(BlockingSurface, PlanPipeline):
    """What both forms of a pipeline share; see `KeyPipeline`.

    It is typed as redis-py types its own pipelines: by the replies that `execute` will return.
    """

    def __init__(self, keys: Any, transaction: bool) -> None:
        super().__init__(keys.client, transaction)
        self._keys = keys
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Queue one command; what all the methods end in. Returns the pipeline."""
        require_users_keys(args)
        self._commands.append(args)
        return self._run(self._command_steps(args, options))

    def _command_steps(self, args: tuple[Any, ...], options: dict[str, Any]) -> Steps[Any]:
        # Which index shard it goes to is known when the layout has been read.
        plan = self._keys.translator.translate(self._keys.layout, args, options)
        return plan.combine((yield list(plan.operations)))

    def reset(self) -> None:
        """Forget what is queued."""
        super().reset()
        self._commands = []

    def _ready(self) -> Steps[Layout]:
        steps: Steps[Layout] = self._keys.ready_steps(self._commands)
        return steps


class KeyPipeline(_Pipeline, BlockingPlanPipeline):
    """Commands on durable keys and the user's own, sent together by `execute` in one round trip.

    The methods are those of `DurableKeys`; every other method of redis-py's pipelines queues the
    user's own command (``p.incr("visits")``), and so does ``p.plain.set(...)`` where the name is
    taken. Use as a context manager, or call `reset` when it is not executed.
    """

    _keys: DurableKeys

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order.

        Arguments: raise_on_error: whether the first error is raised, or returned in its place. One
        round trip (at a namespace's or a cluster slot's first use, those of the setting up too).
        """
        try:
            drive(self._client, self._ready())
            return super().execute(raise_on_error)
        finally:
            self.reset()


class AsyncKeyPipeline(_Pipeline, AsyncPlanPipeline):
    """A `KeyPipeline` whose `execute` is awaited."""

    _keys: AsyncDurableKeys

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send everything queued, and return the results in order; see `KeyPipeline.execute`."""
        try:
            await drive_async(self._client, self._ready())
            return await super().execute(raise_on_error)
        finally:
            self.reset()
