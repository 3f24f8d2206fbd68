"""The settings of a cached function: serializer, kept errors, and what may be decorated. No I/O.

A stored value begins with its mark, `#msgpack1:`, so a process reads its own serializer's values
alone, and a pickle is loaded only where pickle was chosen. The default serializer of each kind of
cache has no mark in its first version: former releases wrote no mark, and processes of old and new
releases read each other's values. `#` begins neither a JSON text nor a pickle.
"""

from __future__ import annotations

import inspect
import json
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

from workstealing.clock import seconds_of
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.recruiting.deferral import Enlister

SerializerName = Literal["json", "msgpack", "pickle"]
_NAME = re.compile(r"[a-z][a-z_-]{0,31}")
_MARK_BEGINS, _MARK_ENDS = b"#", b":"
# No name is so long; what stands there without an end is no mark.
_LONGEST_MARK = 64
_DIGITS = b"-0123456789"
_SIGNED_64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Serializer:
    """Two functions, with the name and the version that stand before each value in Redis.

    Arguments:
        name: 1 to 32 of a to z, `-` and `_`.
        dumps: makes str or bytes of a value.
        loads: its inverse for bytes.
        version: from 1 on.

    A value of another name or version counts as missing, so a new version forgets what the former
    one wrote. Raises: ConfigurationError.
    """

    name: str
    dumps: Callable[[Any], str | bytes]
    loads: Callable[[bytes], Any]
    version: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _NAME.fullmatch(self.name)):
            raise ConfigurationError(
                f"the serializer's name is {self.name!r}; expected 1 to 32 of a to z, - and _"
            )
        if not (type(self.version) is int and 1 <= self.version < 2**31):
            raise ConfigurationError(
                f"the version of serializer {self.name!r} is {self.version!r}; expected a whole"
                " number from 1 on"
            )
        if not (callable(self.dumps) and callable(self.loads)):
            raise ConfigurationError(
                f"dumps and loads of serializer {self.name!r} must be functions of one argument"
            )


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _pickled(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


JSON = Serializer("json", compact, json.loads)
# The bytes of pickle name their protocol, which is its version.
PICKLE = Serializer("pickle", _pickled, pickle.loads)


def _msgpack() -> Serializer:
    try:
        import msgpack
    except ModuleNotFoundError as error:
        if error.name != "msgpack":
            raise
        raise MissingExtraError("msgpack", "msgpack") from error

    return Serializer(
        "msgpack",
        msgpack.packb,
        lambda data: msgpack.unpackb(data, strict_map_key=False),
    )


_BY_NAME: dict[str, Callable[[], Serializer]] = {
    "json": lambda: JSON,
    "msgpack": _msgpack,
    "pickle": lambda: PICKLE,
}


def checked_serializer(given: object) -> Serializer:
    """Return a serializer by its name, or the given one.

    Raises: ConfigurationError for anything else; MissingExtraError if msgpack is not installed.
    """
    if isinstance(given, Serializer):
        return given
    make = _BY_NAME.get(given) if isinstance(given, str) else None
    if make is None:
        raise ConfigurationError(
            f'serializer={given!r} is none: give "json", "msgpack", "pickle", or a Serializer'
        )
    return make()


@dataclass(frozen=True, slots=True)
class StoredForm:
    """How one cache's values stand in Redis.

    Arguments:
        default: the serializer of such caches whose first version has no mark.
        counts: whether whole numbers of 64 bits are digits, so that Redis can count on them.
    """

    serializer: Serializer
    default: Serializer = JSON
    counts: bool = False
    _mark: bytes = field(init=False)

    def __post_init__(self) -> None:
        named = f"#{self.serializer.name}{self.serializer.version}:".encode()
        mark = b"" if self.serializer == self.default else named
        object.__setattr__(self, "_mark", mark)

    def encode(self, value: Any) -> bytes:
        """Return a value's bytes. Raises: the errors of the serializer."""
        if self.counts and type(value) is int and value in _SIGNED_64:
            return b"%d" % value
        content = self.serializer.dumps(value)
        return self._mark + (content.encode() if isinstance(content, str) else bytes(content))

    def decode(self, data: bytes) -> Any:
        """Return the value of `encode`'s bytes.

        Raises: ValueError for bytes of another serializer or version, which are not looked into;
        any error of the serializer for damaged bytes.
        """
        if self.counts and data[:1] in _DIGITS:
            return int(data)
        mark = b""
        if data[:1] == _MARK_BEGINS:
            mark = data[: data.find(_MARK_ENDS, 0, _LONGEST_MARK) + 1]
        if mark != self._mark:
            raise ValueError(
                f"it was written by {_shown(mark, self.default)}, and this cache reads"
                f" {_shown(self._mark, self.default)}"
            )
        return self.serializer.loads(data[len(mark) :] if mark else data)


def _shown(mark: bytes, default: Serializer) -> str:
    text = mark[1:-1].decode("ascii", "replace")
    return f"serializer {text or default.name}" if text or not mark else "an unknown serializer"


WRAPPERS = (classmethod, staticmethod)
Named = str | Callable[..., str]
# A result has digits there: see `CachedResults`.
_ERROR = b"!"

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _UNRESOLVED: dict[str, Any] = {"annotation_format": Format.FORWARDREF}
else:
    _UNRESOLVED: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Policy:
    """How a function's results are kept; see `VolatileHashes.cached`. Times are in seconds.

    form: how a result stands in Redis; errors: for how long each class of exceptions is kept, with
    its subclasses; is_bare: the field
    holds the encoded result alone, without the cost of computing it, for readers that know no cost;
    then `early` must be 0.
    """

    key: Named
    field: Named | None
    recruiter: Enlister | None
    ttl: float
    stale: float
    early: float
    wait: float
    lease: float
    hold: float
    form: StoredForm
    errors: tuple[tuple[type[Exception], float], ...] = ()
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class KeptError:
    """An exception of a function that is kept like a result. Fields: kind, as declared; args."""

    kind: type[Exception]
    args: list[Any]

    def made(self) -> Exception:
        """Return the exception anew, because each raise adds to its traceback."""
        return self.kind(*self.args)


def encode_error(kind: type[Exception], error: Exception) -> bytes:
    """Return an exception as bytes: its declared class and, if JSON can say them, its arguments."""
    try:
        content = json.dumps([_path_of(kind), list(error.args)])
        kind(*error.args)
    except Exception:  # noqa: BLE001 - a user's class; its caller is owed the function's own error
        content = json.dumps([_path_of(kind), [str(error)]])
    return _ERROR + content.encode()


def decode_error(data: bytes, policy: Policy) -> KeptError | None:
    """Return the exception that bytes stand for; None if they are none that is declared."""
    if not data.startswith(_ERROR):
        return None
    path, args = json.loads(data[len(_ERROR) :])
    for kind, _ in policy.errors:
        if _path_of(kind) == path:
            found = KeptError(kind, args)
            # The error's class may take other arguments by now.
            found.made()
            return found
    return None


def _path_of(kind: type[Exception]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def name_of(function: object) -> str:
    """Return a function's name as its module has it."""
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__name__


def checked_policy(*, early: float, serializer: object, **options: Any) -> Policy:
    """Return the settings, checked. Raises: ConfigurationError; MissingExtraError."""
    if not isinstance(early, int | float) or not 0.0 <= early <= 100.0:
        raise ConfigurationError(
            f"early={early!r} is no factor: give 0 for never, or about 1 (0 <= early <= 100)"
        )
    for name, least in (
        ("ttl", 0.001),
        ("stale", 0.0),
        ("wait", 0.0),
        ("lease", 0.001),
        ("hold", 0.0),
    ):
        options[name] = seconds_of(options[name], name, least)
    options["errors"] = _checked_errors(options["errors"])
    for name in ("key", "field"):
        given = options[name]
        if not (isinstance(given, str) or callable(given) or (given is None and name == "field")):
            raise ConfigurationError(
                f"{name}={given!r} names nothing: give a template of the function's arguments"
                ' ("item:{id}"), or a function of them'
            )
    recruiter = options["recruiter"]
    enlists = callable(getattr(recruiter, "enlist", None)) and not isinstance(recruiter, type)
    if not (recruiter is None or enlists):
        raise ConfigurationError(f"recruiter={recruiter!r} enlists nobody: give a Recruiter")
    form = StoredForm(checked_serializer(serializer))
    return Policy(early=float(early), form=form, **options)


def _checked_errors(given: Any) -> tuple[tuple[type[Exception], float], ...]:
    is_right = isinstance(given, Mapping) and all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in given
    )
    if not (given is None or is_right):
        raise ConfigurationError(
            f"errors={given!r} declares no exceptions: give a dict of classes and how long each is"
            " kept, as {LookupError: 5}"
        )
    return tuple((kind, seconds_of(given[kind], "errors", 0.001)) for kind in given or ())


def checked_function(function: object, policy: Policy, *, is_async: bool) -> Any:
    """Return a function to decorate. Raises: ConfigurationError for one of the other kind."""
    plain: Any = getattr(function, "__func__", function)
    if not callable(plain) or isinstance(plain, type):
        raise ConfigurationError(f"cached decorates a function, not {name_of(plain)}")
    name = name_of(plain)
    called = getattr(plain, "__call__", plain)  # noqa: B004 - an object's own, which may be async
    for kind in (inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        if kind(plain) or kind(called):
            raise ConfigurationError(
                f"{name} is a generator function, whose result can be used only once: let it return"
                " a list"
            )
    if any(map(inspect.iscoroutinefunction, (plain, called))) is not is_async:
        raise ConfigurationError(
            f"{name} is no coroutine function, and AsyncVolatileHashes awaits it: decorate it by"
            " VolatileHashes(...).cached"
            if is_async
            else f"{name} is a coroutine function, and VolatileHashes does not await it: decorate"
            " it by AsyncVolatileHashes(...).cached"
        )
    if policy.field is None and not isinstance(getattr(plain, "__name__", None), str):
        raise ConfigurationError(f"a {name} has no name of its own: give field=")
    return function


def signature_for(function: Callable[..., Any], policy: Policy) -> inspect.Signature | None:
    """Return the signature that templates need, None if there is none to be read and no need.

    Raises: ConfigurationError for a template that names no argument.
    """
    try:
        # Names of annotations may be unknown while the program runs.
        signature = inspect.signature(function, **_UNRESOLVED)
    except (TypeError, ValueError):
        # As of many built-in functions.
        signature = None
    known = [] if signature is None else list(signature.parameters)
    for option, template in (("key", policy.key), ("field", policy.field)):
        if not isinstance(template, str):
            continue
        try:
            used = _used_in(template)
        except ValueError as error:
            raise ConfigurationError(
                f"{option}={template!r} is no template: {error}; write {{{{ and }}}} for braces"
            ) from None
        for name in used:
            if name not in known:
                raise ConfigurationError(
                    f"{option}={template!r} names {name!r}, which is no argument of"
                    f" {name_of(function)}; its arguments are: {', '.join(known) or 'none'}"
                )
    return signature


def positions_of(signature: inspect.Signature | None) -> tuple[str, ...] | None:
    """Return the arguments' names in order, None if some have no position."""
    if signature is None:
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.kind not in kinds for each in signature.parameters.values()):
        return None
    return tuple(signature.parameters)


def _used_in(template: str) -> list[str]:
    """Return the names of the arguments in a template. Raises: ValueError."""
    used = []
    for _, name, form, _ in Formatter().parse(template):
        if name is not None:
            used += [re.split(r"[.\[]", name, maxsplit=1)[0], *_used_in(form or "")]
    return used
