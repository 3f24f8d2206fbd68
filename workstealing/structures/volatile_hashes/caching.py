"""Functions whose results are kept in fields of hashes, computed by one caller at a time."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from workstealing.recruiting.deferral import defer
from workstealing.store.grants import run_aside
from workstealing.store.job_client import HostCall
from workstealing.store.operations import AS_BYTES, Steps, drive, drive_async
from workstealing.store.sending import PATIENCE_SECONDS, finish
from workstealing.structures.volatile_hashes.cached_policy import (
    KeptError,
    Policy,
)
from workstealing.structures.volatile_hashes.cached_results import (
    CachedResults,
    ComputingTurn,
    timeouts,
)
from workstealing.structures.volatile_hashes.computations import Awaited

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Computation:
    """A step: compute the result. The reply is the result, or `Raised`. Fields: args and kwargs."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Raised:
    """An exception that a call raises, where a value would be returned.

    No generator raises it: it may be a StopIteration, of which a generator would make another.
    """

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def outcome(ended: R | Raised) -> R:
    """Return how a call has ended. Raises: the exception that the call has ended with."""
    if isinstance(ended, Raised):
        try:
            raise ended.error
        finally:
            # The error holds this frame, which must not hold the error.
            del ended
    return ended


class CachedCalls(CachedResults[P, R]):
    """The calls of a cached function, in both forms; a `Computation` is a step of theirs, too."""

    def _enlist(self) -> None:
        """Enlist for a call that has finished early."""
        raise NotImplementedError

    def _calling(self, turn: ComputingTurn, args: Any, kwargs: Any) -> Steps[R | Raised]:
        """Return the kept result, or compute it."""
        try:
            turn.key, turn.field = self.place(*args, **kwargs)
            entry, is_away = None, not self._may_ask(turn)
            if not is_away:
                try:
                    entry = self._answered(turn, (yield self._question(turn)))
                except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
                    is_away = self._unanswered(turn, error)
            # A hit goes no further.
            if entry is None or self._is_due(entry):
                entry = yield from self._looking(turn, entry, is_away)
        except Exception as error:  # noqa: BLE001 - as above
            turn.fail(error)
            self._fault(error)
            entry = None
        if entry is not None:
            self._given(turn, entry)
            self._enlist()
            kept = entry.value
            return Raised(kept.made()) if isinstance(kept, KeptError) else kept
        turn.compute(self._policy.hold)
        value: R | Raised = yield Computation(args, kwargs)
        if isinstance(value, Raised):
            old, steps = self._failed(turn, value.error)
            self._looks.miss() if old is None else self._looks.old()
            if steps is not None:
                yield from self._quietly(turn, steps)
            return value if old is None else old.value
        self._looks.miss()
        try:
            content = self._encoded(value)
        except Exception as error:  # noqa: BLE001 - the value is good, though it cannot be kept
            self._fault(error)
        else:
            yield from self._quietly(turn, self._storing(turn, content, turn.cost))
        return value

    def _refreshing(self, turn: ComputingTurn, args: Any, kwargs: Any) -> Steps[R | Raised]:
        """Compute the result and keep it. The lease may be there after a fault of any command."""
        try:
            yield from self._taking_over(turn)
        except Exception as error:
            turn.fail(error)
            raise
        value: R | Raised = yield Computation(args, kwargs)
        if isinstance(value, Raised):
            self._count_failure(value.error)
            return value
        content = self._encoded(value)
        try:
            yield from self._storing(turn, content, turn.cost)
        except Exception as error:
            turn.fail(error)
            raise
        return value

    def _quietly(self, turn: ComputingTurn, steps: Steps[None]) -> Steps[None]:
        """Go through steps without which the caller has its value: a fault is only logged."""
        if turn.token is not None:
            self._may_ask(turn)
        try:
            yield from steps
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            turn.fail(error)
            self._fault(error)


class CachedFunction(CachedCalls[P, R]):
    """A function whose results are kept in a hash; see `VolatileHashes.cached`."""

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: CachedFunction[Concatenate[S, Q], R], instance: S, owner: Any = None
    ) -> CachedFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an instance, or of a class."""
        return self._bound_to(instance, owner)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the kept result, or compute it."""
        turn = ComputingTurn()
        return self._run(turn, self._calling(turn, args, kwargs))

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it. Two round trips.

        Calls that compute it at this moment keep nothing: theirs may be older. This one keeps
        nothing either if another refresh() or invalidate() comes meanwhile, or if it takes longer
        than the lease. Raises: the function's own errors; errors of redis-py.
        """
        turn = ComputingTurn(self.place(*args, **kwargs))
        return self._run(turn, self._refreshing(turn, args, kwargs))

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; say whether there was one. One round trip.

        Calls that compute it at this moment keep nothing. Raises: errors of redis-py.
        """
        turn = ComputingTurn(self.place(*args, **kwargs))
        return drive(turn, self._forgetting(turn), self._send)

    def _run(self, turn: ComputingTurn, steps: Steps[R | Raised]) -> R:
        try:
            return outcome(drive(turn, steps, self._send))
        finally:
            # After an exception of whatever kind, too: others need not wait for nobody.
            try:
                self._give_back(turn)
            finally:
                turn.finish()

    def _send(self, turn: ComputingTurn, request: Any) -> Any:
        if isinstance(request, tuple):
            try:
                with HostCall(self._breaker or self._breaker_of(request[1]), timeouts):
                    return self._hashes.execute_command(*request, **AS_BYTES)
            except Exception:
                raise
            except BaseException as error:
                # Nobody knows whether it was done.
                turn.fail(error)
                raise
        if isinstance(request, Computation):
            began = time.monotonic()
            try:
                return self._function(*self._before, *request.args, **request.kwargs)
            except Exception as error:  # noqa: BLE001 - `outcome` raises it
                return Raised(error)
            finally:
                turn.cost = self._took(began)
        if isinstance(request, Awaited):
            return request.computation.wait(request.seconds)
        return time.sleep(request.seconds)

    def _enlist(self) -> None:
        recruiter = self._enlister()
        if not defer(recruiter, None, self):
            recruiter.enlist()

    def _give_back(self, turn: ComputingTurn) -> None:
        """Give back the lease that a call may still have."""
        if turn.token is None:
            return
        try:
            if not turn.is_cut:
                drive(turn, self._quietly(turn, self._giving_back(turn)), self._send)
        except BaseException as error:
            turn.fail(error)
            raise
        finally:
            # That, too, may have been interrupted.
            if turn.token is not None and turn.is_cut:
                self._give_back_aside(turn)

    def _give_back_aside(self, turn: ComputingTurn) -> None:
        """Give the lease back on a connection of its own: the client's may still owe a reply."""
        # On a fleet, the hash's own node.
        node_of = getattr(self._hashes, "_node_of", None)
        hashes = self._hashes if node_of is None else node_of((turn.key,))
        steps = hashes._command_steps(self._unleasing(turn), AS_BYTES)  # noqa: SLF001
        run_aside(hashes.client, steps)


class AsyncCachedFunction(CachedCalls[P, R]):
    """A coroutine function whose results are kept in a hash; see `VolatileHashes.cached`."""

    _blocks = False

    def __init__(self, hashes: Any, function: Any, policy: Policy) -> None:
        super().__init__(hashes, function, policy)
        # For frameworks that ask whether they must await it.
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        else:
            self._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: AsyncCachedFunction[Concatenate[S, Q], R], instance: S, owner: Any = None
    ) -> AsyncCachedFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the method of an instance, or of a class."""
        return self._bound_to(instance, owner)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the kept result, or compute it."""
        turn = ComputingTurn()
        return await self._run(turn, self._calling(turn, args, kwargs))

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it; see `CachedFunction.refresh`."""
        turn = ComputingTurn(self.place(*args, **kwargs))
        return await self._run(turn, self._refreshing(turn, args, kwargs))

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; see `CachedFunction.invalidate`."""
        turn = ComputingTurn(self.place(*args, **kwargs))
        return await drive_async(turn, self._forgetting(turn), self._send)

    async def _run(self, turn: ComputingTurn, steps: Steps[R | Raised]) -> R:
        interruption: BaseException | None = None
        try:
            return outcome(await drive_async(turn, steps, self._send))
        except BaseException as raised:
            interruption = raised
            raise
        finally:
            try:
                if turn.token is not None:
                    await self._give_back(turn, interruption)
            finally:
                turn.finish()
                # It holds this frame, which must not hold it.
                interruption = None

    async def _send(self, turn: ComputingTurn, request: Any) -> Any:
        if isinstance(request, tuple):
            with HostCall(self._breaker or self._breaker_of(request[1]), timeouts):
                return await self._hashes.execute_command(*request, **AS_BYTES)
        if isinstance(request, Computation):
            began = time.monotonic()
            try:
                return await self._function(*self._before, *request.args, **request.kwargs)
            except Exception as error:  # noqa: BLE001 - `outcome` raises it
                return Raised(error)
            finally:
                turn.cost = self._took(began)
        if isinstance(request, Awaited):
            return await request.computation.wait_async(request.seconds)
        return await asyncio.sleep(request.seconds)

    async def _give_back(self, turn: ComputingTurn, interruption: BaseException | None) -> None:
        """Give the lease back, even if this call is cancelled again meanwhile."""

        async def giving_back() -> None:
            try:
                # The client may know no time-out.
                async with asyncio.timeout(PATIENCE_SECONDS):
                    self._may_ask(turn)
                    await drive_async(turn, self._giving_back(turn), self._send)
            except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
                self._fault(error)

        await finish(giving_back(), interruption)

    def _enlist(self) -> None:
        recruiter = self._enlister()
        if defer(recruiter, None, self):
            return
        draw = getattr(recruiter, "draw", None)
        if draw is None:
            # An enlister of the user's own.
            recruiter.enlist()
        elif (drawn := draw()) is not None:
            drawn.serve_on_loop()
