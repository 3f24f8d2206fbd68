"""Flask-Caching on volatile hashes: a hit enlists, and recruits free the memory of expired entries.

app.config["CACHE_TYPE"] = "workstealing.integrations.flask_caching.VolatileHashCache"
app.config["CACHE_REDIS_URL"] = "redis://localhost:6379/0"
app.config["CACHE_OPTIONS"] = {"namespace": "shop", "recruiter": "shop.maintenance:recruiter"}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.cache_entries import CacheEntries, CacheSettings, opened

try:
    from flask_caching.backends.base import BaseCache
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("flask_caching", "cachelib", "flask"):
        raise
    raise MissingExtraError("flask-caching", "Flask-Caching") from error

_OPTIONS = (
    *("namespace", "buckets", "recruiter", "rate", "limit", "backend", "on_fault"),
    "serializer",
)


class VolatileHashCache(BaseCache):
    """A backend of Flask-Caching, which documents its methods.

    Configuration: CACHE_REDIS_URL: a URL as of `workstealing.connect`, or the import path of a
    client; CACHE_KEY_PREFIX: a text, or a function that returns one; CACHE_OPTIONS: namespace
    ("cache"), buckets (1024), recruiter (an import path), rate (0.003) and limit (5) of the job
    that collects expired entries, backend ("auto", "emulated" or "native"), on_fault ("miss" or
    "raise"), serializer ("pickle", which lets a program that can write to this Redis run code in
    your processes; "json", "msgpack", a `Serializer` or its import path). Raises:
    ConfigurationError and MissingExtraError, when the app is configured.

    Whole numbers stand as digits, so `inc` and `dec` are exact among processes. A time
    to live of 0 means none. With a fault of Redis `get`, `get_many`, `set` and `set_many` miss, or
    raise with on_fault; all others raise redis-py's errors.
    """

    def __init__(
        self,
        entries: CacheEntries,
        key_prefix: str | Callable[[], str] = "",
        default_timeout: int = 300,
        ignore_delete_many_errors: bool = False,
    ) -> None:
        super().__init__(default_timeout=default_timeout)
        # Flask-Caching before 2.5 has another name for it, and no use in its own class.
        self.ignore_delete_many_errors = ignore_delete_many_errors
        self.entries = entries
        self.key_prefix = key_prefix

    @classmethod
    def factory(
        cls,
        app: Any,  # noqa: ARG003 - Flask-Caching's own
        config: dict[str, Any],
        args: list[Any],  # noqa: ARG003 - Flask-Caching's own
        kwargs: dict[str, Any],
    ) -> VolatileHashCache:
        """Make the backend from an app's configuration; Flask-Caching calls it.

        Raises: ConfigurationError for an option that is unknown or wrong.
        """
        ours = {key: kwargs.pop(key) for key in _OPTIONS if key in kwargs}
        kwargs.pop("ignore_errors", None)
        unknown = sorted(kwargs.keys() - {"default_timeout", "ignore_delete_many_errors"})
        if unknown:
            raise ConfigurationError(
                f"CACHE_OPTIONS has the unknown key {unknown[0]!r}; known are {', '.join(_OPTIONS)}"
            )
        entries = opened(CacheSettings(config.get("CACHE_REDIS_URL"), **ours))
        return cls(entries, config.get("CACHE_KEY_PREFIX") or "", **kwargs)

    def _key(self, key: str) -> str:
        # As of Flask-Caching's own backends: a prefix may be told by a function.
        prefix = self.key_prefix() if callable(self.key_prefix) else self.key_prefix
        return f"{prefix}{key}"

    def _seconds(self, timeout: Any) -> float | None:
        given = self.default_timeout if timeout is None else timeout
        seconds = given.total_seconds() if hasattr(given, "total_seconds") else given
        # Flask-Caching's 0 is "for ever"; below it, the entry has ended.
        return None if seconds == 0 else seconds

    def get(self, key: str) -> Any:
        """Return a key's value, or None. One round trip; a hit enlists."""
        made = self._key(key)
        return self.entries.get_many([made]).get(made)

    def get_many(self, *keys: str) -> list[Any]:
        """Return the values of keys, None for each that has none. One round trip."""
        made = [self._key(key) for key in keys]
        found = self.entries.get_many(made)
        return [found.get(each) for each in made]

    def set(self, key: str, value: Any, timeout: Any = None) -> bool:
        """Set a key's value; return whether it was set. One round trip."""
        return self.entries.set_many({self._key(key): value}, self._seconds(timeout))

    def set_many(self, mapping: dict[str, Any], timeout: Any = None) -> list[str]:
        """Set several values; return the keys that were set. One round trip."""
        values = {self._key(key): value for key, value in mapping.items()}
        return list(mapping) if self.entries.set_many(values, self._seconds(timeout)) else []

    def add(self, key: str, value: Any, timeout: Any = None) -> bool:
        """Set a value if there is none; return whether it was set. One round trip."""
        return self.entries.add(self._key(key), value, self._seconds(timeout))

    def has(self, key: str) -> bool:
        """Say whether a key has a value. One round trip."""
        return self.entries.has(self._key(key))

    def delete(self, key: str) -> bool:
        """Delete a value; return whether there was one. One round trip."""
        return bool(self.entries.delete_many([self._key(key)]))

    def delete_many(self, *keys: str) -> list[str]:
        """Delete several values; return their keys. One round trip."""
        self.entries.delete_many(map(self._key, keys))
        return list(keys)

    def inc(self, key: str, delta: int = 1) -> int | None:
        """Add to a whole number, which keeps its deadline; without a value, set one.

        Returns: the sum; None if another process has deleted it meanwhile. At most three round
        trips.
        """
        made = self._key(key)
        total = self.entries.increment(made, delta)
        if total is None:
            if self.entries.add(made, delta, self._seconds(None)):
                return delta
            # Another process was first.
            total = self.entries.increment(made, delta)
        return total

    def dec(self, key: str, delta: int = 1) -> int | None:
        """Subtract from a whole number; see `inc`."""
        return self.inc(key, -delta)

    def clear(self) -> bool:
        """Delete every value of the namespace. One round trip for each 128 buckets."""
        self.entries.clear()
        return True
