"""WSGI middleware: a request enlists at most once, after its response has gone out.

The server calls `close()` of the application's result after the last byte. The enlist happens in
this `close()`, so the client has the whole response before a slice runs. HTTP and servers let three
clients wait for the slice all the same:

* A client that sees the response's end only by the end of the connection, because the response has
  no Content-Length, and the request is an HTTP/1.0 one or the server does not chunk. Such responses
  do not enlist.
* The sender of the next request on the same keep-alive connection.
* Any client of a worker with a single thread.

The last two wait for one slice at most, 10 ms by a recruiter's default.

A response ends by itself if it carries a Content-Length, if its status (204, 304) or its method
(HEAD) allows no body, or if it is chunked. A response is chunked if the request speaks HTTP/1.1,
and the application has set Transfer-Encoding itself or the server is known to chunk (gunicorn, and
gevent's pywsgi). Every other response is left alone.

A file in the server's own `wsgi.file_wrapper` stays in it, so the server still sends it by
sendfile. The enlist follows its `close` if the server calls that after the last byte (gunicorn).
Otherwise the request does not enlist.

Werkzeug's test client, which is Flask's, closes no body that the program does not close. With that
client the enlist follows the body's last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from workstealing.errors import ConfigurationError
from workstealing.recruiting.deferral import Deferral, Enlister, When, current

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_new = object.__new__
T = TypeVar("T")
AppT = TypeVar("AppT")

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

# SERVER_SOFTWARE begins like this for servers that chunk each HTTP/1.1 response without a length,
# and call close() after the last byte. tests/integrations have seen them do so.
_CHUNKING_SERVERS = ("gunicorn/", "gevent/")
# The same for servers that call close() of their own file wrapper in the request's thread after the
# last byte. Others, such as waitress, call it in the thread that serves all clients.
_FILE_CLOSING_SERVERS = ("gunicorn/",)
# The test client that leaves bodies open, by the module of its start_response.
_TEST_CLIENT = "werkzeug.test"
_BODILESS_STATUSES = frozenset({"204", "304"})
# Sending these runs no code of the application's.
_INERT = frozenset({list, tuple, bytes})


class Headers(Mapping[str, str]):
    """Response headers to read; the case of a name does not matter.

    Arguments:
        headers: as start_response received them.

    A repeated header reads as its values, joined by commas.
    """

    def __init__(self, headers: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in headers:
            key = name.lower()
            earlier = self._values.get(key)
            self._values[key] = value if earlier is None else f"{earlier}, {value}"

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class WsgiResponse:
    """The response that `when` receives under plain WSGI: status and headers, to read.

    Arguments:
        status: such as "200 OK".
        headers: as start_response received them.
    """

    __slots__ = ("_headers", "_raw", "_status")

    def __init__(self, status: str, headers: Iterable[tuple[str, str]]) -> None:
        self._status = status
        self._raw = headers
        self._headers: Headers | None = None

    @property
    def status(self) -> str:
        """The status line, such as "200 OK"."""
        return self._status

    @property
    def status_code(self) -> int:
        """The status as a number, such as 200; 0 if the line does not begin with one."""
        code = self._status[:3]
        return int(code) if code.isdecimal() else 0

    @property
    def headers(self) -> Headers:
        """The headers; the case of a name does not matter."""
        if self._headers is None:
            self._headers = Headers(self._raw)
        return self._headers


class Middleware(Generic[AppT]):
    """An application whose requests enlist after their responses have gone out.

    Arguments:
        app: the application to wrap.
        recruiter: by default the one behind `workstealing.enlist`.
        when: it receives a `WsgiResponse` and says whether this request enlists, None: each request
            enlists.

    For a handler that `Recruiter.enlists` decorates, the decorator decides instead of `when`. For
    decorated handlers only: `when=lambda response: False`.

    Inside another integration of this package it passes each request through unchanged: the
    outermost one enlists. The draw comes as soon as the response is known. If that is whole (a
    list), the response of a dismissed request goes to the server untouched.
    """

    def __init__(
        self,
        app: AppT,
        recruiter: Enlister | None = None,
        when: When | None = None,
    ) -> None:
        self._app = app
        self._recruiter = checked_setting(recruiter, when)
        self._when = when
        self._draw: Any = getattr(self._recruiter, "draw", None) if when is None else None


def or_default(recruiter: Enlister | None) -> Enlister:
    """Return the recruiter, or for None the default one; for integrations."""
    if recruiter is not None:
        return recruiter
    from workstealing.recruiting.recruiter import default_recruiter

    return default_recruiter


def checked_setting(recruiter: Enlister | None, when: object) -> Enlister:
    """Return the recruiter, or the default one; for integrations, when they are set up.

    Raises: ConfigurationError for something else than a recruiter, such as the application, or a
    `when` that is no function: each request would show it.
    """
    if recruiter is not None and not callable(getattr(recruiter, "enlist", None)):
        raise ConfigurationError(
            f"recruiter= is {recruiter!r}; expected a Recruiter, behind the application"
        )
    if when is not None and not callable(when):
        raise ConfigurationError(f"when= is {when!r}; expected a function of the response")
    return or_default(recruiter)


class Exchange(Deferral):
    """One request of a WSGI application, with a deferred enlist; for integrations.

    Arguments as of `Deferral`. The middleware sets the other attributes: a constructor of this
    class's own would cost a twentieth of the whole. Status and headers are those of the response,
    once the server has them.
    """

    __slots__ = ("environ", "headers", "middleware", "server_start", "status")

    middleware: WorkStealingMiddleware
    environ: WSGIEnvironment
    server_start: StartResponse
    status: str
    headers: Sequence[tuple[str, str]]

    def wrapped(self, result: Iterable[bytes]) -> Iterable[bytes]:
        """Return the body for the server: the result, with an enlist after its close."""
        wrapper = self.environ.get("wsgi.file_wrapper")
        if isinstance(wrapper, type) and isinstance(result, wrapper):
            _chain_file(result, self)
            return result
        if hasattr(result, "__len__"):
            return _SizedBody(result, self)
        return _Body(result, self)

    @property
    def is_left_open(self) -> bool:
        """Whether nobody closes the body unless the program does: Werkzeug's and Flask's client.

        No network lies between such a test client and the application, so a whole body has gone
        out.
        """
        return getattr(self.server_start, "__module__", None) == _TEST_CLIENT

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: _ExcInfo | None = None,
        /,
    ) -> Callable[[bytes], object]:
        """Pass the response's start on to the server, and keep it if the server accepts it."""
        if exc_info is None:
            write = self.server_start(status, headers)
        else:
            try:
                write = self.server_start(status, headers, exc_info)
            finally:
                exc_info = None  # A traceback that reaches this frame must not keep itself alive.
        self.status = status
        self.headers = headers
        self.responded = True
        if self.when is not None:
            self.started()
        return write

    def started(self) -> None:
        """Ask the governing `when`, now that the server has status and headers."""
        self.ask()

    def response(self) -> object:
        """Return the response object that `when` receives."""
        return WsgiResponse(self.status, self.headers)

    def is_inert(self, result: object) -> bool:
        """Say whether a result of no plain type is sent and closed without the application's code.

        Such code may call decorated functions, which must find this request.
        """
        return type(result) in _INERT

    def run(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run one step of the application; an error other than the body's end ends the enlist."""
        token = current.set(self)
        try:
            return step(*arguments)
        except StopIteration:
            raise
        except BaseException:
            self.drop()
            raise
        finally:
            current.reset(token)

    def finish(self, close: Callable[[], object] | None) -> None:
        """Close the application's result, then enlist."""
        if close is not None:
            self.run(close)
        if self.responded and ends_by_itself(self.environ, self.status, self.headers):
            self.close()
        else:
            self.drop()


class WorkStealingMiddleware(Middleware["WSGIApplication"]):
    """A WSGI application whose requests enlist once answered; arguments as of `Middleware`."""

    def __init__(
        self,
        app: WSGIApplication,
        recruiter: Enlister | None = None,
        when: When | None = None,
    ) -> None:
        super().__init__(app, recruiter, when)
        # Attributes of the object itself are found quicker than those of its class.
        self._exchange: type[Exchange] = Exchange
        self._inert = _INERT

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request.

        Returns: the body for the server: the application's own result if this request is dismissed;
        otherwise one with an enlist or a slice after its close. Raises: as the application.
        """
        outer = current.get()
        if outer is not None and not outer.closed:
            return self._app(environ, start_response)
        # All in one frame, because each call of a function would cost a twentieth of the whole: the
        # constructor of a Deferral, the usual headers, and Deferral.draw_now.
        exchange = _new(self._exchange)
        exchange.recruiter = self._recruiter
        exchange.when = self._when
        exchange.offers = exchange.recruit = exchange.wanted = exchange.known = None
        exchange.responded = exchange.closed = False
        exchange.middleware = self
        exchange.environ = environ
        exchange.server_start = start_response
        token = current.set(exchange)
        try:
            result = self._app(environ, exchange.start_response)
        except BaseException:
            # A client waits: the server has yet to answer, or to cut the connection.
            exchange.drop()
            raise
        finally:
            current.reset(token)
        if exchange.responded and (type(result) in self._inert or exchange.is_inert(result)):
            for name, _ in exchange.headers:
                if name == "Content-Length" and exchange.status >= "2":
                    break
            else:
                if not ends_by_itself(environ, exchange.status, exchange.headers):
                    exchange.drop()
                    return result
            if self._draw is not None and exchange.offers is None:
                exchange.recruit = self._draw()
                if exchange.recruit is None:
                    exchange.closed = True
                    return result
            elif not exchange.draw_now():
                return result
            if exchange.is_left_open:
                exchange.close()
                return result
        return exchange.wrapped(result)


class _Body:
    """The application's result; its `close()` enlists."""

    def __init__(self, result: Iterable[bytes], exchange: Exchange) -> None:
        self._result = result
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        run = self._exchange.run
        iterator: Iterator[bytes] = run(iter, self._result)
        while True:
            try:
                chunk = run(next, iterator)
            except StopIteration:
                if self._exchange.is_left_open:
                    self._exchange.finish(None)
                return
            yield chunk

    def close(self) -> None:
        """Close the application's own iterable, then enlist."""
        self._exchange.finish(getattr(self._result, "close", None))


class _SizedBody(_Body):
    """A result that is a list: servers read its length to avoid a chunked response."""

    def __len__(self) -> int:
        return len(cast("Sequence[bytes]", self._result))


def _chain_file(wrapper: Iterable[bytes], exchange: Exchange) -> None:
    """Let the server's own file wrapper enlist after its close, or leave it alone."""
    if not closes_files(exchange.environ):
        exchange.drop()
        return
    close = getattr(wrapper, "close", None)
    try:
        wrapper.close = lambda: exchange.finish(close)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        exchange.drop()


def closes_files(environ: Mapping[str, Any]) -> bool:
    """Say whether the server closes its own file wrapper in the request's thread; for integrations.

    Returns: True for servers that a test has seen do so.
    """
    return str(environ.get("SERVER_SOFTWARE", "")).startswith(_FILE_CLOSING_SERVERS)


def ends_by_itself(
    environ: Mapping[str, Any], status: str, headers: Iterable[tuple[str, str]]
) -> bool:
    """Say whether a client sees a response's end before the connection's.

    Returns: False in doubt.
    """
    if not "2" <= status[:1] <= "9":
        return False  # An interim answer, or an unknown protocol.
    read = Headers(headers)
    if "content-length" in read:
        return True
    if status[:3] in _BODILESS_STATUSES or environ.get("REQUEST_METHOD") == "HEAD":
        return True
    if environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
        return False
    if read.get("transfer-encoding", "").strip().lower() == "chunked":
        return True
    return str(environ.get("SERVER_SOFTWARE", "")).startswith(_CHUNKING_SERVERS)
