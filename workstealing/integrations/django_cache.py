"""Django's cache on volatile hashes: a hit enlists, and recruits collect expired entries.

CACHES = {"default": {
    "BACKEND": "workstealing.integrations.django_cache.Cache",
    "LOCATION": "redis://localhost:6379/0",
    "OPTIONS": {"NAMESPACE": "shop", "RECRUITER": "shop.maintenance:recruiter", "RATE": 0.003},
}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.cache_entries import CacheEntries, CacheSettings, opened

try:
    from asgiref.sync import iscoroutinefunction, sync_to_async
    from django.core.cache.backends.base import DEFAULT_TIMEOUT, BaseCache
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("django", "asgiref"):
        raise
    raise MissingExtraError("django", "Django") from error

_OPTIONS = {
    "NAMESPACE": "namespace",
    "BUCKETS": "buckets",
    "RECRUITER": "recruiter",
    "RATE": "rate",
    "LIMIT": "limit",
    "STORE": "backend",
    "ON_FAULT": "on_fault",
    "SERIALIZER": "serializer",
}
# Django's own, which this backend has no use for: deadlines bound it, and not a number of entries.
_IGNORED = ("MAX_ENTRIES", "CULL_FREQUENCY")


class Cache(BaseCache):  # type: ignore[misc]
    """A Django cache backend; `django.core.cache.cache` documents its methods.

    LOCATION: a URL as of `workstealing.connect`, or the import path of a client. OPTIONS: NAMESPACE
    ("cache"), BUCKETS (1024), RECRUITER (an import path), RATE (0.003) and LIMIT (5) of the job
    that collects expired entries, STORE ("auto", "emulated" or "native"), ON_FAULT ("miss", or
    "raise", which sessions need), SERIALIZER ("pickle", as of Django's own backends, which lets a
    program that can write to this Redis run code in your processes; "json", "msgpack", a
    `Serializer` or its import path). Raises: ConfigurationError and MissingExtraError, when Django
    makes it.

    Whole numbers stand as digits, so `incr` is exact among processes. With a fault of Redis `get`,
    `get_many`, `get_or_set`, `set` and `set_many` miss, or raise with ON_FAULT; all others raise
    redis-py's errors. `clear` empties the namespace, all versions and prefixes.
    """

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        super().__init__(params)
        options = params.get("OPTIONS") or {}
        unknown = sorted(options.keys() - _OPTIONS.keys() - set(_IGNORED))
        if unknown:
            raise ConfigurationError(
                f"CACHES has the unknown option {unknown[0]!r}; known are {', '.join(_OPTIONS)}"
            )
        given = {_OPTIONS[key]: value for key, value in options.items() if key in _OPTIONS}
        self.entries: CacheEntries = opened(CacheSettings(location or None, **given))

    def get_backend_timeout(self, timeout: Any = DEFAULT_TIMEOUT) -> float | None:
        """Return a timeout in seconds, as of Django's own backend for Redis; None: no deadline."""
        seconds: float | None = self.default_timeout if timeout is DEFAULT_TIMEOUT else timeout
        # NaN is left to those who refuse it.
        return 0 if seconds is not None and seconds < 0 else seconds

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        """Return a key's value. One round trip; a hit enlists."""
        made = self.make_and_validate_key(key, version=version)
        return self.entries.get_many([made]).get(made, default)

    def get_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return the values of the keys that have one. One round trip; a hit enlists."""
        made = {self.make_and_validate_key(key, version=version): key for key in keys}
        return {made[each]: value for each, value in self.entries.get_many(made).items()}

    def set(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> None:
        """Set a key's value. One round trip."""
        made = self.make_and_validate_key(key, version=version)
        self.entries.set_many({made: value}, self.get_backend_timeout(timeout))

    def set_many(
        self, data: Mapping[Any, Any], timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> list[Any]:
        """Set several values; return the keys that could not be set. One round trip."""
        made = {self.make_and_validate_key(key, version=version): data[key] for key in data}
        return [] if self.entries.set_many(made, self.get_backend_timeout(timeout)) else list(data)

    def add(
        self, key: Any, value: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> bool:
        """Set a value if there is none; return whether it was set. One round trip."""
        made = self.make_and_validate_key(key, version=version)
        return self.entries.add(made, value, self.get_backend_timeout(timeout))

    def get_or_set(
        self, key: Any, default: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None
    ) -> Any:
        """Return a key's value; without one, set the default, or the result of calling it.

        A default that is called is called by one caller at a time, and others wait for its result.
        One round trip for a hit, five for a miss. Raises: TypeError for a coroutine function.
        """
        if iscoroutinefunction(default):
            raise TypeError(
                f"the default of {key!r} is a coroutine function, which Django's caches do not"
                " await; give a plain function, or the awaited result"
            )
        made = self.make_and_validate_key(key, version=version)
        if not callable(default):
            return self.entries.get_or_add(made, default, self.get_backend_timeout(timeout))
        value = self.get(key, self._missing_key, version)
        if value is not self._missing_key:
            return value
        return self.entries.computed(made, default, self.get_backend_timeout(timeout))

    def touch(self, key: Any, timeout: Any = DEFAULT_TIMEOUT, version: int | None = None) -> bool:
        """Give a value a new time to live; return whether there is one. One round trip."""
        made = self.make_and_validate_key(key, version=version)
        return self.entries.touch(made, self.get_backend_timeout(timeout))

    def incr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Add to a whole number, which keeps its deadline; return the sum. One round trip.

        Raises: ValueError if there is no value; TypeError if it is no whole number; OverflowError
        if the sum has more than 64 bits; errors of redis-py.
        """
        made = self.make_and_validate_key(key, version=version)
        total = self.entries.increment(made, delta)
        if total is None:
            raise ValueError(f"Key {key!r} not found")
        return total

    def incr_version(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Move a value to another version, with the time that it has left; return the version.

        Raises: ValueError if there is no value; errors of redis-py. One round trip; between two
        nodes of a cluster or a fleet three.
        """
        version = self.version if version is None else version
        made = self.make_and_validate_key(key, version=version)
        moved = self.make_and_validate_key(key, version=version + delta)
        if not self.entries.move(made, moved):
            raise ValueError(f"Key {key!r} not found")
        return version + delta

    def has_key(self, key: Any, version: int | None = None) -> bool:
        """Say whether a key has a value. One round trip."""
        return self.entries.has(self.make_and_validate_key(key, version=version))

    def delete(self, key: Any, version: int | None = None) -> bool:
        """Delete a value; return whether there was one. One round trip."""
        return bool(self.entries.delete_many([self.make_and_validate_key(key, version=version)]))

    def delete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete several values. One round trip."""
        self.entries.delete_many([self.make_and_validate_key(key, version=version) for key in keys])

    def clear(self) -> None:
        """Delete every value of the namespace. One round trip for each 128 buckets."""
        self.entries.clear()

    # Django's own asynchronous forms of these take a round trip for each key, count in two steps
    # that lose the deadline, and (before 6.1) call a default on the event loop.

    async def aget_many(self, keys: Iterable[Any], version: int | None = None) -> dict[Any, Any]:
        """Return the values of the keys that have one; see `get_many`."""
        found: dict[Any, Any] = await _apart(self.get_many, keys, version)
        return found

    async def aset_many(
        self,
        data: Mapping[Any, Any],
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - Django's own
        version: int | None = None,
    ) -> list[Any]:
        """Set several values; see `set_many`."""
        failed: list[Any] = await _apart(self.set_many, data, timeout, version)
        return failed

    async def aget_or_set(
        self,
        key: Any,
        default: Any,
        timeout: Any = DEFAULT_TIMEOUT,  # noqa: ASYNC109 - Django's own
        version: int | None = None,
    ) -> Any:
        """Return a key's value; without one, set the default or its result; see `get_or_set`.

        A default is called in the thread in which Django runs the synchronous code of a request.
        """
        return await _apart(self.get_or_set, key, default, timeout, version)

    async def aincr(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Add to a whole number, which keeps its deadline; see `incr`."""
        total: int = await _apart(self.incr, key, delta, version)
        return total

    async def aincr_version(self, key: Any, delta: int = 1, version: int | None = None) -> int:
        """Move a value to another version; see `incr_version`."""
        moved: int = await _apart(self.incr_version, key, delta, version)
        return moved

    async def ahas_key(self, key: Any, version: int | None = None) -> bool:
        """Say whether a key has a value; see `has_key`."""
        found: bool = await _apart(self.has_key, key, version)
        return found

    async def adelete_many(self, keys: Iterable[Any], version: int | None = None) -> None:
        """Delete several values; see `delete_many`."""
        await _apart(self.delete_many, keys, version)


async def _apart(method: Callable[..., Any], *args: Any) -> Any:
    """Call a method in the thread in which Django runs the synchronous code of a request."""
    return await sync_to_async(method, thread_sensitive=True)(*args)
