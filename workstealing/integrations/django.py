"""Django: a request enlists at most once, when its response is closed, after the last byte.

    INSTALLED_APPS = [..., "workstealing.integrations.django.WorkStealingConfig"]
    MIDDLEWARE = ["workstealing.integrations.django.WorkStealingMiddleware", ...]
    WORKSTEALING = {"RECRUITER": "shop.maintenance:recruiter"}

The middleware serves WSGI and ASGI, plain and asynchronous views. Under WSGI the rules of
`workstealing.integrations.wsgi` hold: a response does not enlist if its client sees its end only by
the connection's. Under ASGI a slice never runs on the event loop.
"""

from __future__ import annotations

import asyncio
import pkgutil
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from types import MethodType
from typing import Any

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.asgi import LoopDeferral
from workstealing.integrations.wsgi import closes_files, ends_by_itself, or_default
from workstealing.recruiting.deferral import (
    Deferral,
    Enlister,
    Recruit,
    When,
    current,
)

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.apps import AppConfig
    from django.conf import settings
    from django.core import checks
    from django.core.exceptions import ImproperlyConfigured
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("django", "asgiref"):
        raise
    raise MissingExtraError("django", "Django") from error

_SETTING = "WORKSTEALING"
_KEYS = ("RECRUITER", "WHEN")
_MIDDLEWARE = f"{__name__}.WorkStealingMiddleware"


class SettingsError(ConfigurationError, ImproperlyConfigured):  # type: ignore[misc]
    """The setting WORKSTEALING is wrong; `id` is that of Django's system check."""

    def __init__(self, id: str, message: str) -> None:  # noqa: A002 - Django's own word
        super().__init__(message)
        self.id = id

    def __reduce__(self) -> tuple[type[SettingsError], tuple[str, str]]:
        return type(self), (self.id, str(self))


class WorkStealingMiddleware:
    """A Django middleware: each request enlists after its response.

    List it first, so it sees the final responses. The middleware reads the setting WORKSTEALING, a
    dict: RECRUITER, a Recruiter or its import path ("package.module:name"), by default the one
    behind `workstealing.enlist`; WHEN, a function or its import path, which receives the
    HttpResponse, an error page as well, and says whether this request enlists, by default each one
    does. A view decorated with `Recruiter.enlists` decides for its own request instead.

    Inside another integration of this package, itself included, it does nothing: the outermost one
    enlists. Raises: SettingsError, when Django loads it.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        raw = _checked_setting()
        self._recruiter = or_default(_recruiter(raw))
        self._when = _when(raw)
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        """Answer one request; in an asynchronous chain, return the coroutine that does."""
        outer = current.get()
        if outer is not None and not outer.closed:
            return self._get_response(request)
        deferral = _DjangoDeferral(self._recruiter, self._when)
        if self._is_async:
            return self._answer_async(request, deferral)
        token = current.set(deferral)
        try:
            response = self._get_response(request)
        except BaseException:
            # A client waits: the server has yet to answer, or to cut the connection.
            deferral.drop()
            raise
        finally:
            current.reset(token)
        return _prepared(response, request, deferral)

    async def _answer_async(self, request: Any, deferral: Deferral) -> Any:
        with _Current(deferral):
            response = await self._get_response(request)
        return _prepared(response, request, deferral)


class WorkStealingConfig(AppConfig):  # type: ignore[misc]
    """The Django app; its system checks let `manage.py check` find faulty settings."""

    name = __name__
    label = "workstealing"
    verbose_name = "Work stealing"

    def ready(self) -> None:
        """Register the checks."""
        checks.register(check_settings, "workstealing")


def check_settings(*_: object, **__: object) -> list[checks.CheckMessage]:
    """Return the messages of Django's `check` command about WORKSTEALING and MIDDLEWARE.

    Returns: workstealing.E001 the setting is no dict, E002 it has unknown keys, E003 its RECRUITER
    or E004 its WHEN cannot be used; W001 the middleware is missing, W002 it is listed twice.
    """
    found: list[checks.CheckMessage] = []
    hint = f'for example: {_SETTING} = {{"RECRUITER": "shop.maintenance:recruiter"}}'
    try:
        raw = _checked_setting()
    except SettingsError as error:
        found.append(checks.Error(str(error), hint=hint, id=error.id))
    else:
        for read in (_recruiter, _when):
            try:
                read(raw)
            except SettingsError as error:
                found.append(checks.Error(str(error), hint=hint, id=error.id))
    listed = list(settings.MIDDLEWARE).count(_MIDDLEWARE)
    if listed == 0:
        found.append(
            checks.Warning(
                "no request enlists: MIDDLEWARE does not list the work stealing middleware",
                hint=f"put {_MIDDLEWARE!r} first",
                id="workstealing.W001",
            )
        )
    elif listed > 1:
        found.append(
            checks.Warning(
                f"MIDDLEWARE lists the work stealing middleware {listed} times; it counts once",
                hint="keep the first one",
                id="workstealing.W002",
            )
        )
    return found


class _DjangoDeferral(LoopDeferral):
    """A deferral that ends on an event loop or, usually, in a thread of its request."""

    __slots__ = ()

    def _enlist(self, recruiter: Enlister) -> None:
        if _is_on_loop():
            super()._enlist(recruiter)
        else:
            recruiter.enlist()

    def _serve(self, recruit: Recruit) -> None:
        if _is_on_loop():
            super()._serve(recruit)
        else:
            recruit.serve()


def _is_on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _Current:
    """Sets the context variable around one step of a request; an error in it ends the enlist."""

    __slots__ = ("_deferral", "_token")

    def __init__(self, deferral: Deferral) -> None:
        self._deferral = deferral

    def __enter__(self) -> None:
        self._token = current.set(self._deferral)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        current.reset(self._token)
        if kind is not None and not issubclass(kind, (StopIteration, StopAsyncIteration)):
            # A client waits: the server has yet to answer, or to cut the connection.
            self._deferral.drop()


class _Close:
    """A stand-in for a response's `close`: the close itself, and then the enlist."""

    def __init__(self, response: Any, request: Any, deferral: Deferral) -> None:
        close = response.close
        # A response that is sent several times has a stand-in already.
        self.original: Callable[[], object] = getattr(close, "original", close)
        self._response = response
        self._request = request
        self._deferral = deferral

    def __call__(self) -> None:
        with _Current(self._deferral):
            self.original()
        if _nobody_waits(self._request, self._response):
            self._deferral.close()
        else:
            self._deferral.drop()

    def __reduce__(self) -> tuple[Any, ...]:
        # Django's cache pickles responses: with their own close, and without the request.
        return _own_close, (self._response,)


def _own_close(response: Any) -> Callable[[], object]:
    return MethodType(type(response).close, response)


def _prepared(response: Any, request: Any, deferral: Deferral) -> Any:
    """Let go of the response of a dismissed request.

    The parts and the close of any other response belong to this request.
    """
    # In this frame: each call of a function would cost a twentieth of the whole.
    deferral.known = response
    deferral.responded = True
    if deferral.when is not None:
        deferral.ask()
    # A middleware further out may still add a length; none takes it away.
    if (
        # The response is whole, and its close runs no code of the application. Such code may call
        # decorated functions, which must find this request.
        not response.streaming
        and not getattr(response, "_resource_closers", True)
        and "close" not in response.__dict__
        and _closes_as_django(type(response))  # type: ignore[arg-type] # a class has a hash
        and _nobody_waits(request, response)
        and not deferral.draw_now()
    ):
        return response
    if response.streaming and getattr(response, "file_to_stream", None) is None:
        steps = _async_steps if response.is_async else _steps
        response.streaming_content = steps(response.streaming_content, deferral)
    response.close = _Close(response, request, deferral)
    return response


@cache
def _closes_as_django(kind: type) -> bool:
    """Say whether the `close` of a class of responses is Django's own."""
    owner = next((each for each in kind.__mro__ if "close" in each.__dict__), kind)
    return owner.__module__.startswith("django.")


def _steps(content: Iterator[bytes], deferral: Deferral) -> Iterator[bytes]:
    while True:
        try:
            with _Current(deferral):
                part = next(content)
        except StopIteration:
            return
        yield part


async def _async_steps(content: AsyncIterator[bytes], deferral: Deferral) -> AsyncIterator[bytes]:
    while True:
        try:
            with _Current(deferral):
                part = await anext(content)
        except StopAsyncIteration:
            return
        yield part


def _nobody_waits(request: Any, response: Any) -> bool:
    """Say whether the client has its last byte while this request's thread is still busy."""
    environ = getattr(request, "environ", None)
    if environ is None:
        return True  # ASGI: the server itself ends a response.
    if (
        response.streaming
        and getattr(response, "file_to_stream", None) is not None
        and environ.get("wsgi.file_wrapper")
        and not closes_files(environ)
    ):
        return False
    try:
        # A look into the headers is half as dear as the question whether they have it.
        response.headers["Content-Length"]
    except KeyError:
        pass
    else:
        if response.status_code >= 200:
            return True
    return ends_by_itself(environ, str(response.status_code), response.items())


def _checked_setting() -> dict[str, Any]:
    raw = getattr(settings, _SETTING, {})
    if not isinstance(raw, dict):
        raise SettingsError(
            "workstealing.E001",
            f"{_SETTING} is {raw!r}; expected a dict with {' and '.join(_KEYS)}",
        )
    unknown = sorted(map(str, raw.keys() - set(_KEYS)))
    if unknown:
        raise SettingsError(
            "workstealing.E002",
            f"{_SETTING} has the unknown key {unknown[0]!r}; known are {' and '.join(_KEYS)}",
        )
    return raw


def _recruiter(raw: dict[str, Any]) -> Enlister | None:
    found = _imported(raw, "RECRUITER", "workstealing.E003")
    if found is not None and not callable(getattr(found, "enlist", None)):
        raise SettingsError(
            "workstealing.E003",
            f"{_SETTING}['RECRUITER'] is {found!r}; expected a Recruiter or its import path",
        )
    return found  # type: ignore[no-any-return]


def _when(raw: dict[str, Any]) -> When | None:
    found = _imported(raw, "WHEN", "workstealing.E004")
    if found is not None and not callable(found):
        raise SettingsError(
            "workstealing.E004",
            f"{_SETTING}['WHEN'] is {found!r}; expected a function of the response or its import"
            " path",
        )
    return found  # type: ignore[no-any-return]


def _imported(raw: dict[str, Any], key: str, id: str) -> Any:  # noqa: A002 - Django's own word
    value = raw.get(key)
    if not isinstance(value, str):
        return value
    try:
        return pkgutil.resolve_name(value)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            id,
            f"{_SETTING}[{key!r}] is {value!r}, which cannot be imported ({error}); expected"
            " 'package.module:name'",
        ) from error
