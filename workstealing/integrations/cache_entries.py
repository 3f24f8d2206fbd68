"""Cache entries in the fields of a few hashes: the ground of the backends for Django and Flask.

An entry is one field with a deadline of its own. Each key has its hash by a checksum, so many
entries share one hash, and the recruits of `HashFieldExpiry` free the memory of expired ones.
"""

from __future__ import annotations

import math
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from workstealing.clock import LONGEST_SECONDS, SYSTEM_CLOCK
from workstealing.errors import ConfigurationError, DuplicateJobError, is_connection_fault
from workstealing.jobs.hash_field_expiry import HashFieldExpiry
from workstealing.recruiting.adaptive import Adaptive
from workstealing.recruiting.breakers import LONGEST_SECONDS as OPEN_SECONDS
from workstealing.recruiting.breakers import SERVER_BREAKERS, Breaker
from workstealing.recruiting.cache_figures import CACHES
from workstealing.recruiting.deferral import Enlister, is_deferring
from workstealing.recruiting.faults import FaultLog, HostTimeouts, shown
from workstealing.recruiting.recruiter import default_recruiter
from workstealing.store.fleet import Fleet
from workstealing.store.job_client import HostCall, is_cluster, may_ask
from workstealing.structures.volatile_hashes import VolatileHashes
from workstealing.structures.volatile_hashes.cached_policy import (
    PICKLE,
    Policy,
    Serializer,
    StoredForm,
    checked_serializer,
)
from workstealing.structures.volatile_hashes.cached_results import breaker_of
from workstealing.structures.volatile_hashes.caching import CachedFunction
from workstealing.structures.volatile_hashes.surface import (
    COUNT_EXISTING,
    FORGET,
    MOVE_FIELD,
    STORE,
)

T = TypeVar("T")

# A clear sends this many names in one round trip.
_NAMES_AT_ONCE = 128
_SECONDS = 1.0
# How long one may compute alone, when others extend that, and how long they wait at most.
_LEASE_SECONDS, _WAIT_SECONDS, _HOLD_SECONDS = 30.0, 2.0, 60.0
_IMPORT_PATH = '"package.module:name"'
# The kinds of values that each setting takes, for the error.
_KINDS: dict[str, tuple[Any, str]] = {
    "location": ((str, type(None)), f"a URL, or {_IMPORT_PATH}"),
    "namespace": (str, "a text"),
    "buckets": (int, "a whole number from 1 on"),
    "rate": ((int, float, Adaptive), "a number from 0 to 1"),
    "limit": (int, "a whole number from 1 on"),
    "recruiter": ((str, type(None)), _IMPORT_PATH),
    "backend": (str, '"auto", "emulated" or "native"'),
    "on_fault": (str, '"miss" or "raise"'),
    "serializer": (
        (str, Serializer),
        f'"pickle", "json", "msgpack", a Serializer, or {_IMPORT_PATH}',
    ),
}
MISS, RAISE = "miss", "raise"

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
    """Where entries are and who collects them; `opened` explains each field.

    Raises: ConfigurationError for a value of the wrong kind.
    """

    # It may hold a password.
    location: str | None = field(default=None, repr=False)
    namespace: str = "cache"
    buckets: int = 1024
    rate: float | Adaptive = 0.003
    limit: int = 5
    recruiter: str | None = None
    backend: str = "auto"
    on_fault: str = MISS
    serializer: str | Serializer = PICKLE.name

    def __post_init__(self) -> None:
        for name, (kinds, expected) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise ConfigurationError(
                    f"the cache's {name} is of type {type(value).__name__}; expected {expected}"
                )
        if self.on_fault not in (MISS, RAISE):
            raise ConfigurationError(
                f'the cache\'s on_fault is {self.on_fault!r}; expected "{MISS}" or "{RAISE}"'
            )
        if self.buckets < 1:
            raise ConfigurationError(
                f"the cache's number of buckets is {self.buckets}; expected a whole number from"
                " 1 on"
            )


def opened(settings: CacheSettings) -> CacheEntries:
    """Return the entries for these settings: one object for a process, whatever asks for it.

    The fields of the settings: location: a URL as of `connect`, or the import path of a client
    ("shop.redis:client"), None: as of `connect`; namespace: of the VolatileHashes; buckets: the
    number of hashes, which must be the same in every process; rate and limit: of the
    `HashFieldExpiry` that is installed, rate 0 installs none; recruiter: an import path, None: the
    one behind `workstealing.enlist`; backend: of the VolatileHashes; on_fault: "raise" if reads and
    writes raise the errors of Redis too, which by default are misses; serializer: its name, itself
    or its import path.

    Raises: ConfigurationError; MissingExtraError. No round trip, except that a cluster's client
    reads its map.
    """
    with _lock:
        found = _opened.get(settings)
    if found is not None:
        return found
    # The lock is not held, because a module of the program may open a cache when it is imported.
    recruiter, serializer = _recruiter(settings.recruiter), settings.serializer
    if isinstance(serializer, str) and ":" in serializer:
        serializer = _imported(serializer, "serializer")
    form = entry_form(serializer)
    imported = None
    if settings.location is not None and "://" not in settings.location:
        imported = _imported(settings.location, "location")
    with _lock:
        found = _opened.get(settings)
        if found is None:
            found = _opened[settings] = _made(settings, imported, recruiter, form)
    return found


def _made(settings: CacheSettings, imported: Any, recruiter: Any, form: StoredForm) -> CacheEntries:
    client = _connected(settings.location) if imported is None else imported
    hashes = VolatileHashes(client, settings.namespace, backend=settings.backend)
    for each in client.nodes.values() if isinstance(client, Fleet) else (client,):
        if each.get_encoder().decode_responses:
            raise ConfigurationError(
                "the cache's client has decode_responses=True, but entries are bytes; give a client"
                " or a URL without it"
            )
    if settings.rate != 0:
        if not callable(getattr(recruiter, "install", None)):
            raise ConfigurationError(
                f"the cache's recruiter {settings.recruiter!r} takes no job; expected a Recruiter,"
                " or the rate 0"
            )
        try:
            recruiter.install(HashFieldExpiry(hashes, limit=settings.limit), rate=settings.rate)
        except DuplicateJobError as error:
            raise ConfigurationError(
                f"the cache's namespace {settings.namespace!r} has a job on its recruiter already,"
                " another cache's or your own; give this cache another namespace, or the rate 0"
            ) from error
    return CacheEntries(hashes, settings.buckets, recruiter, settings.on_fault, form)


def _recruiter(path: str | None) -> Any:
    if path is None:
        return default_recruiter
    recruiter = _imported(path, "recruiter")
    if not callable(getattr(recruiter, "enlist", None)):
        raise ConfigurationError(
            f"the cache's recruiter {path!r} is {recruiter!r}; expected a Recruiter"
        )
    return recruiter


def _connected(url: str | None) -> Any:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from workstealing.store.client import connect

    # A request must not wait for redis-py's ten retries of a server that is gone.
    return connect(
        url,
        socket_timeout=_SECONDS,
        socket_connect_timeout=_SECONDS,
        retry=Retry(NoBackoff(), 1),
    )


def _imported(path: str, setting: str) -> Any:
    module, _, name = path.partition(":")
    if not all(map(str.isidentifier, (*module.split("."), name))):
        # It is not shown, because it may be a URL with a password and a mistake.
        expected = _KINDS[setting][1]
        raise ConfigurationError(f"the cache's {setting} is no import path; expected {expected}")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the cache's {setting} {path!r} cannot be imported: {error}"
        ) from error


def entry_form(serializer: object) -> StoredForm:
    """Return how entries stand in Redis: a whole number in digits, so it can be counted on.

    Raises: ConfigurationError; MissingExtraError.
    """
    return StoredForm(checked_serializer(serializer), default=PICKLE, counts=True)


class CacheEntries:
    """Entries by key, each with its own deadline; a hit enlists.

    Arguments:
        buckets: the number of hashes.
        recruiter: where a hit enlists.
        form: how values stand in Redis, by default as pickles.

    Inside a request that an integration of this package serves, that integration alone enlists.

    A method's `timeout` is in seconds; None, or a hundred years and more: the entry has no
    deadline; 0 or less: it ends at once; NaN: ValueError. With a fault of Redis, a full server's
    refusal included, `get_many` misses, `set_many` reports that it failed, `get_or_add` returns its
    value, and one line a minute is logged; with `on_fault="raise"` they raise. All others raise the
    client's own errors: their yes or no would be a guess. A call whose reply was lost is not sent
    again where a second time would do or answer something else; on a cluster redis-py's pipelines
    send `delete_many` again. A host's time-out passes everywhere.
    """

    def __init__(
        self,
        hashes: VolatileHashes,
        buckets: int,
        recruiter: Enlister,
        on_fault: str = MISS,
        form: StoredForm | None = None,
    ) -> None:
        self.hashes = hashes
        self._form = entry_form(PICKLE) if form is None else form
        self._raises = on_fault == RAISE
        self._buckets = buckets
        self._recruiter = recruiter
        self._prefix = f"{hashes.namespace}:"
        self._figures = CACHES.of(hashes.namespace)
        # Until then, several nodes are asked one by one.
        self._apart = 0.0
        self._subject = f"the cache in namespace {hashes.namespace!r}"

    def place(self, key: str) -> str:
        """Return the name of the hash that holds a key's entry."""
        return f"{self._prefix}{zlib.crc32(_field(key)) % self._buckets}"

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of the keys that have an entry. One round trip."""
        by_hash = self._by_hash(keys)
        if not by_hash:
            return {}
        found = self._found(by_hash)
        self._figures.hit(len(found))
        self._figures.miss(sum(map(len, by_hash.values())) - len(found))
        if found and not is_deferring():
            self._recruiter.enlist()
        return found

    def _found(self, by_hash: dict[str, list[str]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for breaker, places in self._parts(by_hash):
            part = {place: by_hash[place] for place in places}
            nothing: dict[str, Any] = {}
            values = self._tried(breaker, partial(self._read, part), nothing)
            if values is nothing:
                self._figures.leave(sum(map(len, part.values())))
            found |= values
        return found

    def computed(self, key: str, compute: Callable[[], Any], timeout: float | None) -> Any:
        """Return a key's value; if there is none, let one caller compute it while others wait.

        The others wait for a minute at most; then the next of them computes the value. The rules
        are those of `VolatileHashes.cached`. Raises: the errors of compute. A hit costs one round
        trip, a miss four.
        """
        px = _ms(timeout)
        if px == 0:
            return compute()
        place, named = self.place(key), _field(key)
        policy = Policy(
            key=lambda: place,
            field=lambda: named,
            recruiter=self._recruiter,
            ttl=LONGEST_SECONDS if px is None else px / 1000,
            stale=0.0,
            early=0.0,
            wait=_WAIT_SECONDS,
            lease=_LEASE_SECONDS,
            hold=_HOLD_SECONDS,
            form=self._form,
            is_bare=True,
        )
        # A class has no signature that could be read, so it is called by a function.
        function = lambda: compute()  # noqa: E731, PLW0108
        return CachedFunction(self.hashes, function, policy, self._subject, self._figures)()

    def get_or_add(self, key: str, value: Any, timeout: float | None) -> Any:
        """Return a key's value; if there is none, write this one. A miss costs 2 or 3 round trips.

        Raises: the errors of the serializer.
        """
        found = self.get_many([key])
        if key in found:
            return found[key]
        encoded, px = self._form.encode(value), _ms(timeout)
        breaker = breaker_of(self.hashes, self.place(key))
        if self._tried(breaker, lambda: self._add(key, encoded, px), True):
            return value
        # Another caller was quicker.
        return self._found({self.place(key): [key]}).get(key, value)

    def has(self, key: str) -> bool:
        """Say whether a key has an entry. One round trip; it does not enlist."""
        return bool(self.hashes.hexists(self.place(key), _field(key)))

    def set_many(self, values: Mapping[str, Any], timeout: float | None) -> bool:
        """Write entries; return whether they were written. One round trip.

        Raises: the errors of the serializer; nothing is written then.
        """
        px = _ms(timeout)
        form = self._form
        encoded = {} if px == 0 else {key: form.encode(value) for key, value in values.items()}

        def write(keys: list[str]) -> bool:
            if px == 0:
                return self.delete_many(keys) >= 0
            with self.hashes.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.execute_command(*self._storing(key, encoded[key], px))
                pipeline.execute()
            return True

        by_hash = self._by_hash(values)
        written = True
        for breaker, places in self._parts(by_hash):
            keys = [key for place in places for key in by_hash[place]]
            written &= self._tried(breaker, partial(write, keys), False)
        return written

    def add(self, key: str, value: Any, timeout: float | None) -> bool:
        """Write an entry if the key has none; return whether that was so. One round trip.

        Raises: the errors of the serializer; nothing is written then.
        """
        return self._add(key, self._form.encode(value), _ms(timeout))

    def _add(self, key: str, encoded: bytes, px: int | None) -> bool:
        if px == 0:
            # The entry ends at once: only the answer is left.
            return not self.has(key)
        return bool(self.hashes.execute_command(*self._storing(key, encoded, px, "FNX")))

    def _storing(self, key: str, data: bytes, px: int | None, when: str = "") -> tuple[Any, ...]:
        """Return the command that writes an entry, and lets no computer overwrite it."""
        place = (STORE, self.place(key), "FIELDS", 1, _field(key))
        return (*place, "", "" if px is None else px, when, data)

    def touch(self, key: str, timeout: float | None) -> bool:
        """Give an entry a new deadline; return whether there is one. One round trip."""
        px = _ms(timeout)
        if px == 0:
            return bool(self.delete_many([key]))
        place, named = self.place(key), _field(key)
        if px is None:
            (code,) = self.hashes.hpersist(place, named)
        else:
            (code,) = self.hashes.hpexpire(place, px, named)
        return bool(code != -2)

    def increment(self, key: str, delta: int) -> int | None:
        """Add to an entry's whole number and keep its deadline. One round trip.

        Returns: the sum; None if there is no entry. Raises: TypeError if the entry, or delta, is no
        whole number; OverflowError if the sum has more than 64 bits.
        """
        from redis.exceptions import ResponseError

        place, named = self.place(key), _field(key)
        # In one step: HINCRBY alone would make an entry without a deadline.
        amount = int(delta) if isinstance(delta, bool) else delta
        try:
            total: int | None = self.hashes.execute_command(
                COUNT_EXISTING, place, named, amount, "FXX"
            )
        except ResponseError as error:
            kind = _kind_of(error)
            if kind is None:
                raise
            raise kind(
                f"the cache's entry {key!r} cannot be counted on: {error}; expected a whole number"
                " of at most 64 bits"
            ) from error
        return total

    def move(self, key: str, other: str) -> bool:
        """Give an entry another key, with the time that it has left; return whether there is one.

        One step, in one round trip; it does not enlist. Between two nodes of a cluster or a fleet
        it takes three, and an error in between leaves the entry at both keys.
        """
        if key == other:
            return self.has(key)
        place, to = self.place(key), self.place(other)
        named, to_named = _field(key), _field(other)
        if place == to or not self._is_divided:
            moving = (MOVE_FIELD, place, to, "FIELDS", 2, named, to_named)
            return bool(self.hashes.execute_command(*moving))
        with self.hashes.pipeline() as pipeline:
            pipeline.hget(place, named)
            pipeline.hpttl(place, named)
            data, (left,) = pipeline.execute()
        if data is None or left == -2:
            return False
        px = None if left == -1 else max(1, left)
        self.hashes.execute_command(*self._storing(other, data, px))
        self.hashes.hdel(place, named)
        return True

    @property
    def _is_divided(self) -> bool:
        """Whether two hashes may be on two nodes."""
        client = self.hashes.client
        return isinstance(client, Fleet) or is_cluster(client)

    def delete_many(self, keys: Iterable[str]) -> int:
        """Delete entries; return how many there were. One round trip."""
        by_hash = self._by_hash(keys)
        if not by_hash:
            return 0
        with self.hashes.pipeline(transaction=False) as pipeline:
            for name, each in by_hash.items():
                fields = [_field(key) for key in each]
                pipeline.execute_command(FORGET, name, "FIELDS", len(fields), *fields)
            return sum(pipeline.execute())

    def clear(self) -> None:
        """Delete every entry of the namespace's cache.

        The cost depends on the number of buckets alone: one round trip for each 128.
        """
        buckets = range(self._buckets)
        for start in buckets[::_NAMES_AT_ONCE]:
            with self.hashes.pipeline(transaction=False) as pipeline:
                for each in buckets[start : start + _NAMES_AT_ONCE]:
                    pipeline.unlink(f"{self._prefix}{each}")
                pipeline.execute()

    def _read(self, by_hash: dict[str, list[str]]) -> dict[str, Any]:
        asked = [(name, [_field(key) for key in keys]) for name, keys in by_hash.items()]
        if len(asked) == 1:
            # Half as much for the caller's Python as a pipeline of one command.
            replies: list[Any] = [self.hashes.hmget(*asked[0])]
        else:
            with self.hashes.pipeline(transaction=False) as pipeline:
                for name, fields in asked:
                    pipeline.hmget(name, fields)
                replies = pipeline.execute()
        found: dict[str, Any] = {}
        for keys, values in zip(by_hash.values(), replies, strict=True):
            for key, data in zip(keys, values, strict=True):
                if data is not None:
                    self._decode(key, data, found)
        return found

    def _decode(self, key: str, data: bytes, found: dict[str, Any]) -> None:
        try:
            found[key] = self._form.decode(data)
        except Exception as error:
            if _timeouts.include(error):
                raise
            # Another program wrote it, or a class has changed: that one entry is a miss.
            why = f"{type(error).__name__}: {shown(error)}"
            _faults.warn(self._subject, f"an entry cannot be read and counts as missing: {why}")

    def _by_hash(self, keys: Iterable[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for key in dict.fromkeys(keys):
            found.setdefault(self.place(key), []).append(key)
        return found

    def _parts(self, places: Iterable[str]) -> list[tuple[Breaker | None, list[str]]]:
        """Return the hashes that are asked together, with the breaker of their server.

        It is all of them, unless one of several nodes has failed lately: then the nodes are asked
        one by one, because an error of all together does not say whose it is.
        """
        if not self._is_divided:
            found = list(places)
            return [(breaker_of(self.hashes, found[0]), found)] if found else []
        by_breaker: dict[Breaker, list[str]] = {}
        for place in places:
            by_breaker.setdefault(breaker_of(self.hashes, place), []).append(place)
        is_well = not any(each.outage for each in by_breaker)
        if len(by_breaker) > 1 and is_well and SERVER_BREAKERS.clock.monotonic() >= self._apart:
            return [(None, [each for some in by_breaker.values() for each in some])]
        return list(by_breaker.items())

    def _tried(self, breaker: Breaker | None, task: Callable[[], T], otherwise: T) -> T:
        """Do a task on a server, unless that is left alone. A fault counts as `otherwise`.

        Arguments:
            breaker: the server's, None: there are several.
        """
        if not (breaker is None or self._raises or may_ask(breaker)):
            return otherwise
        try:
            if breaker is None:
                return task()
            with HostCall(breaker, _timeouts):
                return task()
        except Exception as error:
            if breaker is None and is_connection_fault(error):
                self._apart = SERVER_BREAKERS.clock.monotonic() + OPEN_SECONDS
            if self._raises:
                raise
            self._fault(error)
            return otherwise

    def _fault(self, error: Exception) -> None:
        """Log a fault. Raises: a host's time-out."""
        if _timeouts.include(error):
            raise error
        _faults.report(self._subject, error)


def _kind_of(error: Exception) -> type[Exception] | None:
    """Return the class of error that says why a number could not be counted on."""
    text = str(error).lower()
    # Never a ValueError: Django's says that there is no entry, and callers then write one.
    if "not an integer" in text:
        return TypeError
    return OverflowError if "overflow" in text or "out of range" in text else None


def _field(key: str) -> Any:
    """Return the field of a key's entry: UTF-8, and a form of its own for a lone surrogate."""
    return key.encode("utf-8", "surrogatepass")


def _ms(timeout: float | None) -> int | None:
    """Return a timeout in milliseconds, 0: it ends at once. Raises: ValueError for NaN."""
    if timeout is None or timeout >= LONGEST_SECONDS:
        return None
    if timeout <= 0:
        return 0
    if math.isnan(timeout):
        raise ValueError("a cache's timeout is NaN; expected a number of seconds, or None")
    return math.ceil(1000 * timeout)
