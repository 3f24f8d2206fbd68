"""The parts of redis-py 8 that an older one, from 5.0 on, lacks: here, with its signatures.

Every part is chosen once, when this module is imported, and by the feature, not by the version's
number. Where redis-py has it, the names below are redis-py's own, and nothing stands in between.
Below them are the methods of redis-py's on keys that several structures have.
"""

from __future__ import annotations

import datetime as dt
import inspect
import ssl
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from redis import cluster as clusters
from redis import connection as connections
from redis import utils
from redis.commands import core
from redis.exceptions import DataError

__all__ = [
    "CONNECTION_OPTIONS",
    "DEFAULT_PROTOCOL",
    "MISREAD_COMMANDS",
    "AbstractConnection",
    "AsyncHashCommands",
    "AsyncScanCommands",
    "HashCommands",
    "HashDataPersistOptions",
    "SSLConnection",
    "ScanCommands",
    "retries_of",
]


def _supplied(known: type[Any], later: type[Any], *renewed: str) -> Any:
    """Return a class of redis-py's with the methods that it lacks; itself if it lacks none.

    Arguments:
        later: has the methods, by itself or from its bases.
        renewed: methods that redis-py has, but with fewer arguments, or with less done.
    """
    missing = {
        name: getattr(later, name)
        for name in dir(later)
        if not name.startswith("__") and (name in renewed or not hasattr(known, name))
    }
    return type(known.__name__, (known,), missing) if missing else known


def _takes(function: Any, parameter: str) -> bool:
    return parameter in inspect.signature(function).parameters


_knows_moved = "MOVED" in connections.DefaultParser.EXCEPTION_CLASSES

# Options of a connection that only some versions know, out of those that this package sets.
CONNECTION_OPTIONS: Mapping[str, Any] = {
    **{
        name: None
        for name in ("driver_info", "lib_name", "lib_version")
        if _takes(connections.AbstractConnection, name)
        # Where there is one, the other two are deprecated.
        and (name == "driver_info" or not _takes(connections.AbstractConnection, "driver_info"))
    },
    # An older redis-py has a parser of its own that knows a cluster's errors.
    **({} if _knows_moved else {"parser_class": getattr(clusters, "ClusterParser", None)}),
}
"""The options by which a connection names no library, and knows MOVED and its siblings."""


DEFAULT_PROTOCOL: int = getattr(utils, "DEFAULT_RESP_VERSION", 2)
"""The protocol of a client that names none."""


def retries_of(retry: Any) -> int:
    """Return how many more attempts follow a first one; a client without retries has None."""
    if retry is None:
        return 0
    # Older ones do not tell.
    retries: int = retry.get_retries() if hasattr(retry, "get_retries") else retry._retries  # noqa: SLF001
    return retries


MISREAD_COMMANDS: frozenset[str] = (
    frozenset() if _takes(core.ScanCommands.hscan, "no_values") else frozenset({"HSCAN"})
)
"""The commands with options whose replies an older redis-py misreads."""


class _LaterPersistOptions(Enum):
    """The conditions of HSETEX: FNX, if no field exists; FXX, if all fields exist."""

    FNX = "FNX"
    FXX = "FXX"


def _condition(nx: bool, xx: bool, gt: bool, lt: bool) -> list[str]:
    wanted = {"NX": nx, "XX": xx, "GT": gt, "LT": lt}
    chosen = [word for word, is_wanted in wanted.items() if is_wanted]
    if len(chosen) > 1:
        raise ValueError("Only one of 'nx', 'xx', 'gt', 'lt' can be specified.")
    return chosen


def _span(time: Any, unit_ms: int) -> Any:
    if isinstance(time, dt.timedelta):
        return int(time.total_seconds() * 1000 / unit_ms)
    return time


def _moment(time: Any, unit_ms: int) -> Any:
    if isinstance(time, dt.datetime):
        return int(time.timestamp() * 1000 / unit_ms)
    return time


def _deadline(ex: Any, px: Any, exat: Any, pxat: Any, **others: Any) -> list[Any]:
    """Return the words for a time to live, of which there is one at most, or another option."""
    given = (ex, px, exat, pxat)
    if sum(each is not None for each in given) + sum(map(bool, others.values())) > 1:
        names = "".join(f"and ``{name}`` " for name in others)
        raise DataError(f"``ex``, ``px``, ``exat``, ``pxat``, {names}are mutually exclusive.")
    if ex is not None:
        seconds = int(ex) if isinstance(ex, str) and ex.isdigit() else _span(ex, 1000)
        if not isinstance(seconds, int):
            raise DataError("ex must be datetime.timedelta or int")
        return ["EX", seconds]
    if px is not None:
        milliseconds = _span(px, 1)
        if not isinstance(milliseconds, int):
            raise DataError("px must be datetime.timedelta or int")
        return ["PX", milliseconds]
    if exat is not None:
        return ["EXAT", _moment(exat, 1000)]
    return [] if pxat is None else ["PXAT", _moment(pxat, 1)]


class _LaterHashCommands:
    """The commands on fields that came after redis-py 5.0."""

    execute_command: Any

    def hexpire(
        self,
        name: Any,
        seconds: Any,
        *fields: Any,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Any:
        """Let fields expire so many seconds from now; a code for each: 1, 2 (gone), 0 or -2."""
        time = _span(seconds, 1000)
        words = (*_condition(nx, xx, gt, lt), "FIELDS", len(fields))
        return self.execute_command("HEXPIRE", name, time, *words, *fields)

    def hpexpire(
        self,
        name: Any,
        milliseconds: Any,
        *fields: Any,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Any:
        """Let fields expire so many milliseconds from now, as `hexpire` does."""
        time = _span(milliseconds, 1)
        words = (*_condition(nx, xx, gt, lt), "FIELDS", len(fields))
        return self.execute_command("HPEXPIRE", name, time, *words, *fields)

    def hexpireat(
        self,
        name: Any,
        unix_time_seconds: Any,
        *fields: Any,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Any:
        """Let fields expire at a time in seconds since the epoch, as `hexpire` does."""
        time = _moment(unix_time_seconds, 1000)
        words = (*_condition(nx, xx, gt, lt), "FIELDS", len(fields))
        return self.execute_command("HEXPIREAT", name, time, *words, *fields)

    def hpexpireat(
        self,
        name: Any,
        unix_time_milliseconds: Any,
        *fields: Any,
        nx: bool = False,
        xx: bool = False,
        gt: bool = False,
        lt: bool = False,
    ) -> Any:
        """Let fields expire at a time in milliseconds since the epoch, as `hexpire` does."""
        time = _moment(unix_time_milliseconds, 1)
        words = (*_condition(nx, xx, gt, lt), "FIELDS", len(fields))
        return self.execute_command("HPEXPIREAT", name, time, *words, *fields)

    def hpersist(self, name: Any, *fields: Any) -> Any:
        """Take the deadlines off fields; a code for each: 1, -1 (had none) or -2 (no field)."""
        return self.execute_command("HPERSIST", name, "FIELDS", len(fields), *fields)

    def httl(self, key: Any, *fields: Any) -> Any:
        """Return the seconds that each field has left; -1 without a deadline, -2 for no field."""
        words = ("FIELDS", len(fields), *fields)
        return self.execute_command("HTTL", key, *words, keys=[key])

    def hpttl(self, key: Any, *fields: Any) -> Any:
        """Return the milliseconds that each field has left, as `httl` does."""
        words = ("FIELDS", len(fields), *fields)
        return self.execute_command("HPTTL", key, *words, keys=[key])

    def hexpiretime(self, key: Any, *fields: Any) -> Any:
        """Return each field's deadline in seconds since the epoch; -1 or -2 as from `httl`."""
        words = ("FIELDS", len(fields), *fields)
        return self.execute_command("HEXPIRETIME", key, *words, keys=[key])

    def hpexpiretime(self, key: Any, *fields: Any) -> Any:
        """Return each field's deadline in milliseconds since the epoch; -1 or -2 as `httl`."""
        words = ("FIELDS", len(fields), *fields)
        return self.execute_command("HPEXPIRETIME", key, *words, keys=[key])

    def hgetdel(self, name: Any, *keys: Any) -> Any:
        """Return the values of fields, and delete the fields."""
        if not keys:
            raise DataError("'hgetdel' should have at least one key provided")
        return self.execute_command("HGETDEL", name, "FIELDS", len(keys), *keys)

    def hgetex(
        self,
        name: Any,
        *keys: Any,
        ex: Any = None,
        px: Any = None,
        exat: Any = None,
        pxat: Any = None,
        persist: bool = False,
    ) -> Any:
        """Return the values of fields, and set their time to live or take it off (`persist`)."""
        if not keys:
            raise DataError("'hgetex' should have at least one key provided")
        words = _deadline(ex, px, exat, pxat, persist=persist)
        if persist:
            words.append("PERSIST")
        return self.execute_command("HGETEX", name, *words, "FIELDS", len(keys), *keys)

    def hsetex(  # noqa: PLR0917 - redis-py's own signature
        self,
        name: Any,
        key: Any = None,
        value: Any = None,
        mapping: Mapping[Any, Any] | None = None,
        items: Sequence[Any] | None = None,
        ex: Any = None,
        px: Any = None,
        exat: Any = None,
        pxat: Any = None,
        data_persist_option: Any = None,
        keepttl: bool = False,
    ) -> Any:
        """Set fields with a time to live; 1 if they were set, 0 if the condition was not met."""
        if key is None and not mapping and not items:
            raise DataError("'hsetex' with no key value pairs")
        if items and len(items) % 2 != 0:
            raise DataError(
                "'hsetex' with odd number of items. 'items' must contain a list of key/value pairs."
            )
        words = _deadline(ex, px, exat, pxat, keepttl=keepttl)
        if data_persist_option:
            words.append(data_persist_option.value)
        if keepttl:
            words.append("KEEPTTL")
        pairs: list[Any] = list(items or ())
        if key is not None:
            pairs += (key, value)
        for pair in (mapping or {}).items():
            pairs += pair
        return self.execute_command("HSETEX", name, *words, "FIELDS", len(pairs) // 2, *pairs)


class _LaterHscan:
    execute_command: Any

    def hscan(
        self,
        name: Any,
        cursor: Any = 0,
        match: Any = None,
        count: int | None = None,
        no_values: bool | None = None,
    ) -> Any:
        """Return the next cursor, 0 at the end, and some fields, with or without their values."""
        words: list[Any] = [name, cursor]
        if match is not None:
            words += (b"MATCH", match)
        if count is not None:
            words += (b"COUNT", count)
        if no_values is not None:
            words.append(b"NOVALUES")
        return self.execute_command("HSCAN", *words, no_values=no_values)


class _LaterScans(_LaterHscan):
    def hscan_iter(
        self, name: Any, match: Any = None, count: int | None = None, no_values: bool | None = None
    ) -> Any:
        """Yield a hash's fields, with or without their values, by HSCANs."""
        cursor: Any = "0"
        while cursor != 0:
            cursor, found = self.hscan(name, cursor, match, count, no_values)
            yield from found if no_values else found.items()


class _LaterAsyncScans(_LaterHscan):
    async def hscan_iter(
        self, name: Any, match: Any = None, count: int | None = None, no_values: bool | None = None
    ) -> Any:
        """Yield a hash's fields, with or without their values, by HSCANs."""
        cursor: Any = "0"
        while cursor != 0:
            cursor, found = await self.hscan(name, cursor, match, count, no_values)
            for each in found if no_values else found.items():
                yield each


class _LaterConnection:
    """The opening of a connection, as redis-py 6.3 began to name it; and one without retries."""

    connect: Any

    def connect_check_health(
        self,
        check_health: bool = True,  # noqa: ARG002 - redis-py's own signature
        retry_socket_connect: bool = True,  # noqa: ARG002 - a one-attempt connection has no retries
    ) -> None:
        """Open the connection."""
        self.connect()


class _LaterSslConnection:
    """TLS whose context is made apart from the connection, so that it can be kept."""

    certfile: Any
    keyfile: Any
    certificate_password: Any
    check_hostname: Any
    cert_reqs: Any
    host: str
    ca_certs: Any
    ca_path: Any
    ca_data: Any

    def _connect(self) -> Any:
        # The next class behind redis-py's own opens the socket.
        sock = super(connections.SSLConnection, self)._connect()  # type: ignore[misc]
        try:
            return self._wrap_socket_with_ssl(sock)
        except BaseException:
            sock.close()
            raise

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        context = ssl.create_default_context()
        context.check_hostname = self.check_hostname
        context.verify_mode = self.cert_reqs
        if self.certfile or self.keyfile:
            context.load_cert_chain(self.certfile, self.keyfile, self.certificate_password)
        if (self.ca_certs, self.ca_path, self.ca_data) != (None, None, None):
            context.load_verify_locations(self.ca_certs, self.ca_path, self.ca_data)
        # Some versions have these two, and some have neither.
        lowest = getattr(self, "ssl_min_version", None)
        if lowest is not None:
            context.minimum_version = lowest
        ciphers = getattr(self, "ssl_ciphers", None)
        if ciphers is not None:
            context.set_ciphers(ciphers)
        return context.wrap_socket(sock, server_hostname=self.host)


if TYPE_CHECKING:
    from redis.commands.core import AsyncScanCommands, HashDataPersistOptions, ScanCommands
    from redis.connection import AbstractConnection, SSLConnection

    # The stubs of types-redis, of redis-py 4, hide redis-py's own types where they are installed:
    # then the later commands are known by these alone.
    class _KnownHashCommands(core.HashCommands, _LaterHashCommands):
        """redis-py's commands on fields."""

    class _KnownAsyncHashCommands(core.AsyncHashCommands, _LaterHashCommands):
        """The same, awaited."""

    HashCommands = _KnownHashCommands
    AsyncHashCommands = _KnownAsyncHashCommands
else:
    HashDataPersistOptions = getattr(core, "HashDataPersistOptions", _LaterPersistOptions)
    HashCommands = AsyncHashCommands = _supplied(core.HashCommands, _LaterHashCommands)
    _renewed = ("hscan", "hscan_iter") if MISREAD_COMMANDS else ()
    ScanCommands = _supplied(core.ScanCommands, _LaterScans, *_renewed)
    AsyncScanCommands = _supplied(core.AsyncScanCommands, _LaterAsyncScans, *_renewed)
    AbstractConnection = _supplied(connections.AbstractConnection, _LaterConnection)
    _has_context = hasattr(connections.SSLConnection, "_wrap_socket_with_ssl")
    SSLConnection = _supplied(
        connections.SSLConnection, _LaterSslConnection, *(() if _has_context else ("_connect",))
    )


# A type checker binds redis-py's methods to the object that they are taken from, and tells by
# `_is_async_client` which replies are awaited.
class _BlockingMethods(core.BasicKeyCommands, ScanCommands):
    _is_async_client: Literal[False] = False


class _AsyncMethods(core.AsyncBasicKeyCommands, AsyncScanCommands):
    _is_async_client: Literal[True] = True


# mypy takes this name for True. Where the stubs of types-redis hide redis-py's own types, it would
# bind the methods to redis-py's class, and refuse them for a structure; those of an object it does
# not.
MYPY = False
if MYPY:
    BLOCKING: _BlockingMethods
    AWAITED: _AsyncMethods
else:
    BLOCKING = _BlockingMethods
    AWAITED = _AsyncMethods


class BlockingLifetimes:
    """redis-py's methods on the lifetime of a key, for structures that have but some of its others.

    They end in `execute_command`, which the structure has.
    """

    # redis-py's protocol for its command classes requires both; no command uses the first.
    _event_dispatcher: Any = None
    _is_async_client: Literal[False] = False

    expire = BLOCKING.expire
    pexpire = BLOCKING.pexpire
    expireat = BLOCKING.expireat
    pexpireat = BLOCKING.pexpireat
    expiretime = BLOCKING.expiretime
    pexpiretime = BLOCKING.pexpiretime
    ttl = BLOCKING.ttl
    pttl = BLOCKING.pttl
    persist = BLOCKING.persist


class AsyncLifetimes:
    """The same methods, awaited."""

    _event_dispatcher: Any = None
    _is_async_client: Literal[True] = True

    expire = AWAITED.expire
    pexpire = AWAITED.pexpire
    expireat = AWAITED.expireat
    pexpireat = AWAITED.pexpireat
    expiretime = AWAITED.expiretime
    pexpiretime = AWAITED.pexpiretime
    ttl = AWAITED.ttl
    pttl = AWAITED.pttl
    persist = AWAITED.persist
