"""A lease on a name, held by a ``with`` block."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Self

from workstealing.errors import Aborted, ConfigurationError

if TYPE_CHECKING:
    from workstealing.structures.durable_keys.keys import AsyncDurableKeys, DurableKeys


class _Lease:
    """What the blocking and the asyncio form share.

    Attribute `kept`: None before the block has ended; then whether the lease was still held when it
    was given back (False: it had run out, and somebody else may have worked meanwhile).
    """

    def __init__(self, name: Any, ttl: float | dt.timedelta) -> None:
        self.name = name
        self.ttl = ttl
        self.kept: bool | None = None
        self._token: int | None = None

    @property
    def token(self) -> int:
        """The fencing token. Errors: ConfigurationError outside the block."""
        if self._token is None:
            raise ConfigurationError(
                f"the lease on {self.name!r} is not held: its token is there inside a with block"
            )
        return self._token

    def _begin(self, token: int | None) -> None:
        if token is None:
            raise Aborted(f"somebody else holds the lease on {self.name!r}")
        self._token, self.kept = token, None

    def _end(self) -> int:
        token, self._token = self.token, None
        return token

    def _require_unheld(self) -> None:
        if self._token is not None:
            raise ConfigurationError(f"this lease on {self.name!r} is held: make another one")


class Lease(_Lease):
    """A lease that a ``with`` block holds; see `DurableKeys.lock`."""

    def __init__(self, keys: DurableKeys, name: Any, ttl: float | dt.timedelta) -> None:
        super().__init__(name, ttl)
        self._keys = keys

    def extend(self, ttl: float | dt.timedelta | None = None) -> bool:
        """Let the lease end `ttl` (by default, as long as at first) from now.

        Returns: False if it had run out. One round trip.
        """
        held: bool = self._keys.extend(self.name, self.token, self.ttl if ttl is None else ttl)
        return held

    def __enter__(self) -> Self:
        """Take the lease. Errors: Aborted if somebody holds it."""
        self._require_unheld()
        self._begin(self._keys.acquire(self.name, self.ttl))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the lease back, unless it has run out."""
        token = self._end()
        try:
            self.kept = self._keys.release(self.name, token)
        except Exception:
            # The block's own error says more, and the lease ends by itself.
            if kind is None:
                raise


class AsyncLease(_Lease):
    """A `Lease` for ``async with``."""

    def __init__(self, keys: AsyncDurableKeys, name: Any, ttl: float | dt.timedelta) -> None:
        super().__init__(name, ttl)
        self._keys = keys

    async def extend(self, ttl: float | dt.timedelta | None = None) -> bool:
        """Let the lease end `ttl` from now; see `Lease.extend`."""
        ttl = self.ttl if ttl is None else ttl
        held: bool = await self._keys.extend(self.name, self.token, ttl)
        return held

    async def __aenter__(self) -> Self:
        """Take the lease. Errors: Aborted if somebody holds it."""
        self._require_unheld()
        self._begin(await self._keys.acquire(self.name, self.ttl))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Give the lease back, unless it has run out."""
        token = self._end()
        try:
            self.kept = await self._keys.release(self.name, token)
        except Exception:
            # The block's own error says more, and the lease ends by itself.
            if kind is None:
                raise
