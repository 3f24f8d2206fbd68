"""Cache entries in the fields of a few hashes: the ground of the backends for Django and Flask.

An entry is one field with a deadline of its own. Each key has its hash by a checksum, so many
entries share one hash, and the recruits of `HashFieldExpiry` free the memory of expired ones.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from workstealing.clock import LONGEST_SECONDS, SYSTEM_CLOCK
from workstealing.errors import ConfigurationError
from workstealing.jobs.hash_field_expiry import HashFieldExpiry
from workstealing.recruiting.deferral import Enlister, is_deferring
from workstealing.recruiting.faults import FaultLog, HostTimeouts
from workstealing.recruiting.recruiter import Recruiter, default_recruiter
from workstealing.structures.volatile_hashes import VolatileHashes
from workstealing.structures.volatile_hashes.cached_results import Policy
from workstealing.structures.volatile_hashes.caching import CachedFunction

T = TypeVar("T")

# A clear sends this many names in one round trip.
_NAMES_AT_ONCE = 128
_SECONDS = 1.0
# How long a caller waits for another's value, and how long that one may compute alone.
_WAIT_SECONDS, _LEASE_SECONDS = 2.0, 30.0
_SIGNED_64 = range(-(2**63), 2**63)

_faults = FaultLog(SYSTEM_CLOCK)
_timeouts = HostTimeouts()
_lock = threading.Lock()
_opened: dict[CacheSettings, CacheEntries] = {}


def _after_fork() -> None:
    # A forked child must not wait for a lock whose holder stayed behind in its parent.
    global _lock  # noqa: PLW0603
    _lock = threading.Lock()
    _faults.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """Where entries are and who collects them; `opened` explains each field."""

    location: str | None = None
    namespace: str = "cache"
    buckets: int = 1024
    rate: float = 0.003
    limit: int = 5
    recruiter: str | None = None
    backend: str = "auto"


def opened(settings: CacheSettings) -> CacheEntries:
    """Return the entries for these settings: one object for a process, whatever asks for it.

    The fields of the settings: location: a URL as of `connect`, or the import path of a client
    ("shop.redis:client"), None: as of `connect`; namespace: of the VolatileHashes; buckets: the
    number of hashes, which must be the same in every process; rate and limit: of the
    `HashFieldExpiry` that is installed, rate 0 installs none; recruiter: an import path, None: the
    one behind `workstealing.enlist`; backend: of the VolatileHashes.

    Raises: ConfigurationError. No round trip, except that a cluster's client reads its map.
    """
    with _lock:
        found = _opened.get(settings)
        if found is None:
            found = _opened[settings] = _made(settings)
    return found


def _made(settings: CacheSettings) -> CacheEntries:
    if not isinstance(settings.buckets, int) or settings.buckets < 1:
        raise ConfigurationError(
            f"the cache's number of buckets is {settings.buckets!r}; expected a whole number from"
            " 1 on"
        )
    recruiter: Recruiter = default_recruiter
    if settings.recruiter is not None:
        recruiter = _imported(settings.recruiter)
        if not callable(getattr(recruiter, "enlist", None)):
            raise ConfigurationError(
                f"the cache's recruiter {settings.recruiter!r} is {recruiter!r}; expected a"
                " Recruiter"
            )
    hashes = VolatileHashes(
        _client(settings.location), settings.namespace, backend=settings.backend
    )
    if settings.rate:
        recruiter.install(HashFieldExpiry(hashes, limit=settings.limit), rate=settings.rate)
    return CacheEntries(hashes, settings.buckets, recruiter)


def _client(location: str | None) -> Any:
    if location is not None and "://" not in location:
        client = _imported(location)
    else:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        from workstealing.store.client import connect

        # A request must not wait for redis-py's ten retries of a server that is gone.
        client = connect(
            location,
            socket_timeout=_SECONDS,
            socket_connect_timeout=_SECONDS,
            retry=Retry(NoBackoff(), 1),
        )
    if client.get_encoder().decode_responses:
        raise ConfigurationError(
            f"the cache's client {location!r} has decode_responses=True, but entries are bytes;"
            " give a client without it"
        )
    return client


def _imported(path: str) -> Any:
    module, found, name = path.partition(":")
    if not found:
        raise ConfigurationError(
            f'the cache\'s setting {path!r} is no import path; expected "package.module:name"'
        )
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the cache's setting {path!r} cannot be imported: {error}"
        ) from error


def encode(value: Any) -> bytes:
    """Return a value's bytes: a whole number in digits, so it can be counted on; else a pickle."""
    if type(value) is int and value in _SIGNED_64:
        return b"%d" % value
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def decode(data: bytes) -> Any:
    """Return the value of `encode`'s bytes."""
    return int(data) if data[:1] in b"-0123456789" else pickle.loads(data)  # noqa: S301


class CacheEntries:
    """Entries by key, each with its own deadline; a hit enlists.

    Arguments: hashes; buckets: the number of hashes; recruiter: where a hit enlists. Inside a
    request that an integration of this package serves, that integration alone enlists.

    A method's `timeout` is in seconds; None: the entry has no deadline; 0 or less: it ends at once.
    No fault of Redis reaches the caller: reads then miss, writes report that they failed, and one
    line a minute is logged. Only a host's time-out passes.
    """

    def __init__(self, hashes: VolatileHashes, buckets: int, recruiter: Enlister) -> None:
        self.hashes = hashes
        self._buckets = buckets
        self._recruiter = recruiter
        self._prefix = f"{hashes.namespace}:"
        self._subject = f"the cache in namespace {hashes.namespace!r}"

    def place(self, key: str) -> str:
        """Return the name of the hash that holds a key's entry."""
        return f"{self._prefix}{zlib.crc32(key.encode()) % self._buckets}"

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of the keys that have an entry. One round trip."""
        by_hash = self._by_hash(keys)
        if not by_hash:
            return {}
        nothing: dict[str, Any] = {}
        found = self._tried(lambda: self._read(by_hash), nothing)
        if found and not is_deferring():
            self._recruiter.enlist()
        return found

    def computed(self, key: str, compute: Callable[[], Any], timeout: float | None) -> Any:
        """Return a key's value; if there is none, let one caller compute it while others wait.

        They wait for two seconds at most, and then compute it too. See `VolatileHashes.cached`,
        which this is. Raises: the errors of compute. A hit costs one round trip, a miss four.
        """
        if timeout is not None and timeout <= 0:
            return compute()
        place = self.place(key)
        policy = Policy(
            key=lambda: place,
            field=lambda: key,
            recruiter=self._recruiter,
            ttl=LONGEST_SECONDS if timeout is None else timeout,
            stale=0.0,
            early=0.0,
            wait=_WAIT_SECONDS,
            lease=_LEASE_SECONDS,
            encode=encode,
            decode=decode,
            is_bare=True,
        )
        # A class has no signature that could be read, so it is called by a function.
        function = lambda: compute()  # noqa: E731, PLW0108
        return CachedFunction(self.hashes, function, policy, self._subject)()

    def has(self, key: str) -> bool:
        """Say whether a key has an entry. One round trip; it does not enlist."""
        return self._tried(lambda: bool(self.hashes.hexists(self.place(key), key)), False)

    def set_many(self, values: Mapping[str, Any], timeout: float | None) -> bool:
        """Write entries; return whether they were written. One round trip.

        Raises: the errors of pickle; nothing is written then.
        """
        if timeout is not None and timeout <= 0:
            return self.delete_many(values) is not None
        encoded = {key: encode(value) for key, value in values.items()}
        px = _ms(timeout)

        def write() -> bool:
            with self.hashes.pipeline(transaction=False) as pipeline:
                for name, fields in self._by_hash(encoded).items():
                    mapping: Any = {field: encoded[field] for field in fields}
                    pipeline.hsetex(name, mapping=mapping, px=px)
                pipeline.execute()
            return True

        return not encoded or self._tried(write, False)

    def add(self, key: str, value: Any, timeout: float | None) -> bool:
        """Write an entry if the key has none; return whether that was so. One round trip.

        Raises: the errors of pickle; nothing is written then.
        """
        from workstealing.store.redis_versions import HashDataPersistOptions

        encoded = encode(value)
        if timeout is not None and timeout <= 0:
            # The entry ends at once: only the answer is left.
            return self._tried(lambda: not self.hashes.hexists(self.place(key), key), False)
        write = self.hashes.hsetex
        if_none = HashDataPersistOptions.FNX
        place, px = self.place(key), _ms(timeout)
        return self._tried(
            lambda: bool(write(place, key, encoded, px=px, data_persist_option=if_none)), False
        )

    def touch(self, key: str, timeout: float | None) -> bool:
        """Give an entry a new deadline; return whether there is one. One round trip."""
        if timeout is not None and timeout <= 0:
            return bool(self.delete_many([key]))
        place, px = self.place(key), _ms(timeout)

        def write() -> bool:
            if px is None:
                (code,) = self.hashes.hpersist(place, key)
            else:
                (code,) = self.hashes.hpexpire(place, px, key)
            return bool(code != -2)

        return self._tried(write, False)

    def increment(self, key: str, delta: int) -> int | None:
        """Add to an entry's whole number and keep its deadline. Two round trips, rarely three.

        Returns: the sum; None if there is no entry, or Redis cannot be asked.
        Raises: ValueError if the entry is no whole number, or the sum has more than 64 bits.
        """
        place = self.place(key)

        def write() -> int | str | None:
            from redis.exceptions import ResponseError

            if not self.hashes.hexists(place, key):
                return None
            # It may have expired since: HINCRBY would make an entry without a deadline.
            with self.hashes.pipeline() as pipeline:
                pipeline.hexists(place, key)
                pipeline.hincrby(place, key, delta)
                existed, total = pipeline.execute(raise_on_error=False)
            for reply in (existed, total):
                if isinstance(reply, ResponseError) and _is_no_number(reply):
                    return str(reply)
                if isinstance(reply, Exception):
                    raise reply
            if not existed:
                self.hashes.hdel(place, key)
                return None
            return int(total)

        total = self._tried(write, None)
        if isinstance(total, str):
            raise ValueError(
                f"the cache's entry {key!r} cannot be counted on: {total}; expected a whole number"
                " of at most 64 bits"
            )
        return total

    def move(self, key: str, other: str) -> bool:
        """Give an entry another key, with the time that it has left; return whether there is one.

        Three round trips; it does not enlist.
        """

        def write() -> bool:
            place = self.place(key)
            with self.hashes.pipeline() as pipeline:
                pipeline.hget(place, key)
                pipeline.hpttl(place, key)
                data, (left,) = pipeline.execute()
            if data is None or left == -2:
                return False
            px = None if left == -1 else max(1, left)
            self.hashes.hsetex(self.place(other), other, data, px=px)
            self.hashes.hdel(place, key)
            return True

        return self._tried(write, False)

    def delete_many(self, keys: Iterable[str]) -> int | None:
        """Delete entries; return how many there were, None if Redis failed. One round trip."""
        by_hash = self._by_hash(keys)
        if not by_hash:
            return 0

        def write() -> int:
            with self.hashes.pipeline(transaction=False) as pipeline:
                for name, fields in by_hash.items():
                    pipeline.hdel(name, *fields)
                return sum(pipeline.execute())

        return self._tried(write, None)

    def clear(self) -> bool:
        """Delete every entry of the namespace's cache; return whether that was done.

        The cost depends on the number of buckets alone: one round trip for each 128.
        """
        names = [f"{self._prefix}{each}" for each in range(self._buckets)]

        def write() -> bool:
            for start in range(0, len(names), _NAMES_AT_ONCE):
                with self.hashes.pipeline(transaction=False) as pipeline:
                    for name in names[start : start + _NAMES_AT_ONCE]:
                        pipeline.unlink(name)
                    pipeline.execute()
            return True

        return self._tried(write, False)

    def _read(self, by_hash: dict[str, list[str]]) -> dict[str, Any]:
        with self.hashes.pipeline(transaction=False) as pipeline:
            for name, fields in by_hash.items():
                pipeline.hmget(name, fields)
            replies = pipeline.execute()
        found: dict[str, Any] = {}
        for fields, values in zip(by_hash.values(), replies, strict=True):
            for field, data in zip(fields, values, strict=True):
                if data is not None:
                    self._decode(field, data, found)
        return found

    def _decode(self, field: str, data: bytes, found: dict[str, Any]) -> None:
        try:
            found[field] = decode(data)
        except Exception as error:  # noqa: BLE001 - a pickle may raise any
            # Another program wrote it, or a class has changed: that one entry is a miss.
            self._fault(error)

    def _by_hash(self, keys: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            found.setdefault(self.place(key), []).append(key)
        return found

    def _tried(self, task: Callable[[], T], otherwise: T) -> T:
        try:
            return task()
        except Exception as error:  # noqa: BLE001 - a cache's fault is not the caller's
            self._fault(error)
            return otherwise

    def _fault(self, error: Exception) -> None:
        """Log a fault. Raises: a host's time-out."""
        if _timeouts.include(error):
            raise error
        _faults.report(self._subject, error)


def _is_no_number(error: Exception) -> bool:
    text = str(error).lower()
    return "not an integer" in text or "overflow" in text or "out of range" in text


def _ms(timeout: float | None) -> int | None:
    return None if timeout is None else max(1, math.ceil(1000 * timeout))
