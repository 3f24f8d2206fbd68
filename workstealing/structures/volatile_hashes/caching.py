"""Functions whose results are kept in fields of hashes, computed by one caller at a time."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import time
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from workstealing.recruiting.deferral import defer
from workstealing.store.aside import PATIENCE_SECONDS, finish
from workstealing.store.grants import run_aside
from workstealing.store.operations import AS_BYTES, Sleep, Steps, drive_by, drive_by_async
from workstealing.structures.volatile_hashes.cached_policy import (
    KeptError,
    Policy,
)
from workstealing.structures.volatile_hashes.cached_results import (
    CachedEntry,
    CachedResults,
    ComputingTurn,
    Requests,
    timeouts,
)
from workstealing.structures.volatile_hashes.calls import HostCall
from workstealing.structures.volatile_hashes.flights import Awaited

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class CachedFunction(CachedResults[P, R]):
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
        try:
            entry = self._look(turn, args, kwargs)
            if entry is not None:
                self._given(turn, entry)
                if not defer(self._enlister(), None, self):
                    self._enlister().enlist()
                if isinstance(entry.value, KeptError):
                    raise entry.value.made()
                kept: R = entry.value
                return kept
            began = time.monotonic()
            turn.compute(self._policy.hold)
            try:
                try:
                    value: R = self._function(*self._before, *args, **kwargs)
                finally:
                    cost = self._took(began)
            except Exception as error:
                old, requests = self._failed(turn, error)
                self._looks.miss() if old is None else self._looks.old()
                if requests is not None:
                    self._quietly(turn, requests)
                if old is None:
                    raise
                instead: R = old.value
                return instead
            self._looks.miss()
            self._keep(turn, value, cost)
            return value
        finally:
            # After an exception of whatever kind, too: others need not wait for nobody.
            try:
                self._give_back(turn)
            finally:
                turn.land()

    def _give_back(self, turn: ComputingTurn) -> None:
        """Give back the lease that a call may still have."""
        if turn.token is None:
            return
        try:
            if not turn.is_cut:
                self._quietly(turn, self._giving_back(turn))
        except BaseException as error:
            turn.fail(error)
            raise
        finally:
            # That, too, may have been interrupted.
            if turn.token is not None and turn.is_cut:
                self._give_back_aside(turn)

    def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it. Two round trips.

        Calls that compute it at this moment keep nothing: theirs may be older. This one keeps
        nothing either if another refresh() or invalidate() comes meanwhile, or if it takes longer
        than the lease. Raises: the function's own errors; errors of redis-py.
        """
        turn = ComputingTurn(self.place(*args, **kwargs))
        try:
            self._strictly(turn, self._taking_over(turn))
            began = time.monotonic()
            try:
                value: R = self._function(*self._before, *args, **kwargs)
            except Exception as error:
                self._count_failure(error)
                raise
            finally:
                cost = self._took(began)
            self._strictly(turn, self._storing(turn, self._encoded(value), cost))
            return value
        finally:
            self._give_back(turn)

    def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; say whether there was one. One round trip.

        Calls that compute it at this moment keep nothing. Raises: errors of redis-py.
        """
        return drive_by(self._send, self._forgetting(*self.place(*args, **kwargs)))

    def _look(self, turn: ComputingTurn, args: Any, kwargs: Any) -> CachedEntry | None:
        try:
            turn.key, turn.field = self.place(*args, **kwargs)
            entry, is_away = None, not self._may_ask(turn)
            if not is_away:
                try:
                    entry = self._answered(turn, self._send(self._question(turn)))
                except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
                    is_away = self._unanswered(turn, error)
            # A hit makes no generator.
            if entry is None or self._is_due(entry):
                entry = drive_by(self._send, self._looking(turn, entry, is_away))
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            turn.fail(error)
            self._fault(error)
            return None
        except BaseException as error:
            turn.fail(error)
            raise
        return entry

    def _keep(self, turn: ComputingTurn, value: Any, cost: float) -> None:
        try:
            content = self._encoded(value)
        except Exception as error:  # noqa: BLE001 - the value is good, though it cannot be kept
            self._fault(error)
        else:
            self._quietly(turn, self._storing(turn, content, cost))

    def _give_back_aside(self, turn: ComputingTurn) -> None:
        """Give the lease back on a connection of its own: the client's may still owe a reply."""
        # On a fleet, the hash's own node.
        node_of = getattr(self._hashes, "_node_of", None)
        hashes = self._hashes if node_of is None else node_of((turn.key,))

        def steps() -> Steps[None]:
            requests, reply = self._giving_back(turn), None
            with contextlib.suppress(StopIteration):
                while True:
                    request = requests.send(reply)
                    reply = yield from hashes._command_steps(request, AS_BYTES)  # noqa: SLF001

        run_aside(hashes.client, steps())

    def _quietly(self, turn: ComputingTurn, requests: Requests[None]) -> None:
        if turn.token is not None:
            self._may_ask(turn)
        try:
            drive_by(self._send, requests)
        except Exception as error:  # noqa: BLE001 - as in `_look`
            turn.fail(error)
            self._fault(error)
        except BaseException as error:
            # Nobody knows whether it was done.
            turn.fail(error)
            raise

    def _strictly(self, turn: ComputingTurn, requests: Requests[None]) -> None:
        try:
            drive_by(self._send, requests)
        except BaseException as error:
            turn.fail(error)
            raise

    def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            time.sleep(request.seconds)
            return None
        if isinstance(request, Awaited):
            return request.flight.wait(request.seconds)
        with HostCall(self._breaker or self._breaker_of(request[1]), timeouts):
            return self._hashes.execute_command(*request, **AS_BYTES)


class AsyncCachedFunction(CachedResults[P, R]):
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
        interruption: BaseException | None = None
        try:
            entry = await self._look(turn, args, kwargs)
            if entry is not None:
                self._given(turn, entry)
                self._enlist()
                if isinstance(entry.value, KeptError):
                    raise entry.value.made()
                kept: R = entry.value
                return kept
            began = time.monotonic()
            turn.compute(self._policy.hold)
            try:
                try:
                    value: R = await self._function(*self._before, *args, **kwargs)
                finally:
                    cost = self._took(began)
            except Exception as error:
                old, requests = self._failed(turn, error)
                self._looks.miss() if old is None else self._looks.old()
                if requests is not None:
                    await self._quietly(turn, requests)
                if old is None:
                    raise
                instead: R = old.value
                return instead
            self._looks.miss()
            await self._keep(turn, value, cost)
            return value
        except BaseException as raised:
            interruption = raised
            raise
        finally:
            try:
                if turn.token is not None:
                    await self._give_back(turn, interruption)
            finally:
                turn.land()
                # It holds this frame, which must not hold it.
                interruption = None

    async def refresh(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute the result now, whatever is kept, and keep it; see `CachedFunction.refresh`."""
        turn = ComputingTurn(self.place(*args, **kwargs))
        interruption: BaseException | None = None
        try:
            await self._strictly(turn, self._taking_over(turn))
            began = time.monotonic()
            try:
                value: R = await self._function(*self._before, *args, **kwargs)
            except Exception as error:
                self._count_failure(error)
                raise
            finally:
                cost = self._took(began)
            await self._strictly(turn, self._storing(turn, self._encoded(value), cost))
            return value
        except BaseException as raised:
            interruption = raised
            raise
        finally:
            if turn.token is not None:
                await self._give_back(turn, interruption)
            interruption = None

    async def invalidate(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget the result of these arguments; see `CachedFunction.invalidate`."""
        forgetting = self._forgetting(*self.place(*args, **kwargs))
        return await drive_by_async(self._send, forgetting)

    async def _look(self, turn: ComputingTurn, args: Any, kwargs: Any) -> CachedEntry | None:
        try:
            turn.key, turn.field = self.place(*args, **kwargs)
            entry, is_away = None, not self._may_ask(turn)
            if not is_away:
                try:
                    entry = self._answered(turn, await self._send(self._question(turn)))
                except Exception as error:  # noqa: BLE001 - as in `CachedFunction._look`
                    is_away = self._unanswered(turn, error)
            if entry is None or self._is_due(entry):
                entry = await drive_by_async(self._send, self._looking(turn, entry, is_away))
        except Exception as error:  # noqa: BLE001 - the cache's fault is not the caller's
            turn.fail(error)
            self._fault(error)
            return None
        return entry

    async def _keep(self, turn: ComputingTurn, value: Any, cost: float) -> None:
        try:
            content = self._encoded(value)
        except Exception as error:  # noqa: BLE001 - the value is good, though it cannot be kept
            self._fault(error)
        else:
            await self._quietly(turn, self._storing(turn, content, cost))

    async def _give_back(self, turn: ComputingTurn, interruption: BaseException | None) -> None:
        """Give the lease back, even if this call is cancelled again meanwhile."""

        async def giving_back() -> None:
            try:
                # The client may know no time-out.
                async with asyncio.timeout(PATIENCE_SECONDS):
                    self._may_ask(turn)
                    await drive_by_async(self._send, self._giving_back(turn))
            except Exception as error:  # noqa: BLE001 - as in `_look`
                self._fault(error)

        await finish(giving_back(), interruption)

    async def _quietly(self, turn: ComputingTurn, requests: Requests[None]) -> None:
        if turn.token is not None:
            self._may_ask(turn)
        try:
            await drive_by_async(self._send, requests)
        except Exception as error:  # noqa: BLE001 - as in `_look`
            turn.fail(error)
            self._fault(error)

    async def _strictly(self, turn: ComputingTurn, requests: Requests[None]) -> None:
        try:
            await drive_by_async(self._send, requests)
        except BaseException as error:
            turn.fail(error)
            raise

    async def _send(self, request: Any) -> Any:
        if isinstance(request, Sleep):
            await asyncio.sleep(request.seconds)
            return None
        if isinstance(request, Awaited):
            return await request.flight.wait_async(request.seconds)
        with HostCall(self._breaker or self._breaker_of(request[1]), timeouts):
            return await self._hashes.execute_command(*request, **AS_BYTES)

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
