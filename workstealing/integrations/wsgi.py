"""WSGI middleware: a request enlists at most once, after its response has gone out.

The server calls `close()` of what an application returned when it has sent the last byte; that is
where the enlist happens, so that the client of a response has all of it before a slice runs. Three
clients wait for the slice all the same, because of how HTTP and servers work:

* A client that knows the response's end only by the connection's: an HTTP/1.0 request, or a server
  that does not chunk, answered without a Content-Length. Such responses are left alone, nobody is
  enlisted.
* The sender of the next request on the same keep-alive connection.
* Any client of a worker that has only this one thread.

The last two wait for at most one slice, 10 ms by a recruiter's default.

A response is taken to end by itself when it carries a Content-Length, when its status (204, 304) or
its method (HEAD) allows no body, or when it is chunked: the request spoke HTTP/1.1 and either the
application set Transfer-Encoding itself or the server is one that was seen to chunk (gunicorn, and
gevent's pywsgi). Every other response is left alone.

A file that is handed to the server in its own `wsgi.file_wrapper` stays in it, so that the server
still sends it by sendfile; the enlist is chained to its `close` where the server calls that after
the last byte (gunicorn), and left out elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from workstealing.recruiting.deferral import Deferral, Enlister, When, current, is_deferring

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

T = TypeVar("T")
AppT = TypeVar("AppT")

Started = Callable[[str, Sequence[tuple[str, str]]], None]

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType]

# How SERVER_SOFTWARE begins for the servers that tests/integrations saw chunk every HTTP/1.1
# response without a length, and call close() after the last byte.
_CHUNKING_SERVERS = ("gunicorn/", "gevent/")
# The same for servers that call close() of their own file wrapper in the request's thread after the
# last byte. (Others, such as waitress, do so in the thread that serves everybody.)
_FILE_CLOSING_SERVERS = ("gunicorn/",)
_BODILESS_STATUSES = frozenset({204, 304})


class Headers(Mapping[str, str]):
    """Response headers to read, whatever the case of their names.

    Arguments: headers, as start_response received them. A header that occurs several times reads as
    its values joined by a comma.
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


class Response:
    """What `when` receives under plain WSGI: the status and the headers, to read.

    Arguments: status, such as "200 OK"; headers, as start_response received them.
    """

    __slots__ = ("_headers", "_status")

    def __init__(self, status: str, headers: Iterable[tuple[str, str]]) -> None:
        self._status = status
        self._headers = Headers(headers)

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
        """The headers; names are found in any case."""
        return self._headers


class Middleware(Generic[AppT]):
    """An application whose requests enlist after their responses have gone out.

    Arguments: app, the application to wrap; recruiter, by default the one behind
    `workstealing.enlist`; when, which receives a `Response` and says whether this request enlists,
    by default every one does. A handler decorated with `Recruiter.enlists` decides for its own
    request instead. For decorated handlers only: `when=lambda response: False`.

    Inside another integration of this package it passes everything through unchanged: the outermost
    one enlists. Costs a dismissed request one counter and a few Python calls per part of its body.
    """

    def __init__(
        self,
        app: AppT,
        recruiter: Enlister | None = None,
        when: When | None = None,
    ) -> None:
        self._app = app
        self._recruiter = or_default(recruiter)
        self._when = when


class WorkStealingMiddleware(Middleware["WSGIApplication"]):
    """A WSGI application whose requests enlist once answered; arguments as of `Middleware`."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        if is_deferring():
            return self._app(environ, start_response)
        deferral = Deferral(self._recruiter, self._when)

        def started(status: str, headers: Sequence[tuple[str, str]]) -> None:
            deferral.respond(Response(status, headers))

        return serve(self._app, environ, start_response, deferral, started)


def or_default(recruiter: Enlister | None) -> Enlister:
    """Return the recruiter, or for None the default one; for integrations."""
    if recruiter is not None:
        return recruiter
    from workstealing.recruiting import default

    return default.recruiter


def serve(
    app: WSGIApplication,
    environ: WSGIEnvironment,
    start_response: StartResponse,
    deferral: Deferral,
    started: Started,
) -> Iterable[bytes]:
    """Run one request of a WSGI application with its enlist put off; for integrations.

    Arguments: app, environ and start_response as in PEP 3333; deferral, fresh; started, called
    with status and headers when the server has taken them, which sees to it that the deferral is
    told its response. Returns: what the server is to send. Raises: what app raises.
    """
    exchange = _Exchange(environ, start_response, deferral, started)
    result = exchange.run(app, environ, exchange.start_response)
    wrapper = environ.get("wsgi.file_wrapper")
    if isinstance(wrapper, type) and isinstance(result, wrapper):
        _chain_file(result, exchange)
        return result
    if hasattr(result, "__len__"):
        return _SizedBody(result, exchange)
    return _Body(result, exchange)


class _Exchange:
    """One request: it sets the context variable around each of the application's steps."""

    def __init__(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        deferral: Deferral,
        started: Started,
    ) -> None:
        self.environ = environ
        self.deferral = deferral
        self._start_response = start_response
        self._started = started
        self._ends_by_itself = False

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: _ExcInfo | None = None,
        /,
    ) -> Callable[[bytes], object]:
        """Pass the response's start on to the server, and judge it if the server took it."""
        try:
            if exc_info is None:
                write = self._start_response(status, headers)
            else:
                write = self._start_response(status, headers, exc_info)
        finally:
            exc_info = None  # A traceback that reaches this frame must not keep itself alive.
        self._ends_by_itself = ends_by_itself(self.environ, Response(status, headers))
        self._started(status, headers)
        return write

    def run(self, step: Callable[..., T], *arguments: Any) -> T:
        """Run one step of the application; any error but the body's end is a lost enlist."""
        token = current.set(self.deferral)
        try:
            return step(*arguments)
        except StopIteration:
            raise
        except BaseException:
            # The server is still to answer, or to cut the connection: somebody waits.
            self.deferral.drop()
            raise
        finally:
            current.reset(token)

    def finish(self, close: Callable[[], object] | None) -> None:
        """Close what the application returned, then enlist."""
        if close is not None:
            self.run(close)
        if self._ends_by_itself:
            self.deferral.close()
        else:
            self.deferral.drop()


class _Body:
    """What the application returned, in whose `close()` the request enlists."""

    def __init__(self, result: Iterable[bytes], exchange: _Exchange) -> None:
        self._result = result
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        run = self._exchange.run
        iterator: Iterator[bytes] = run(iter, self._result)
        while True:
            try:
                chunk = run(next, iterator)
            except StopIteration:
                return
            yield chunk

    def close(self) -> None:
        """Close the application's own iterable, then enlist."""
        self._exchange.finish(getattr(self._result, "close", None))


class _SizedBody(_Body):
    """The same for a list: servers ask its length to save a chunked response."""

    def __len__(self) -> int:
        return len(cast("Sequence[bytes]", self._result))


def _chain_file(wrapper: Iterable[bytes], exchange: _Exchange) -> None:
    """Let the server's own file wrapper enlist after its close, or leave it alone."""
    if not closes_files(exchange.environ):
        exchange.deferral.drop()
        return
    close = getattr(wrapper, "close", None)
    try:
        wrapper.close = lambda: exchange.finish(close)  # type: ignore[attr-defined]
    except (AttributeError, TypeError):
        exchange.deferral.drop()


def closes_files(environ: Mapping[str, Any]) -> bool:
    """Say whether the server closes its own file wrapper in the request's thread; for integrations.

    Arguments: the request's WSGI environ. Returns: True for servers where a test has seen it.
    """
    return str(environ.get("SERVER_SOFTWARE", "")).startswith(_FILE_CLOSING_SERVERS)


def ends_by_itself(environ: Mapping[str, Any], response: Response) -> bool:
    """Say whether a client sees this response's end without waiting for the connection's.

    Arguments: the request's WSGI environ; the response. Returns: False in doubt.
    """
    status = response.status_code
    if status < 200:
        return False  # An interim answer, or a protocol that this package does not know.
    if status in _BODILESS_STATUSES or environ.get("REQUEST_METHOD") == "HEAD":
        return True
    headers = response.headers
    if "Content-Length" in headers:
        return True
    if environ.get("SERVER_PROTOCOL") != "HTTP/1.1":
        return False
    if headers.get("Transfer-Encoding", "").strip().lower() == "chunked":
        return True
    return str(environ.get("SERVER_SOFTWARE", "")).startswith(_CHUNKING_SERVERS)
