"""ASGI middleware: a request enlists at most once, after its response has gone out.

For Starlette, FastAPI and every other ASGI application; this module needs none of them. A request
is over when the application has returned, background tasks included, after it has sent the last
part of its response. The draw is made on the event loop, which costs as much as any enlist. A slice
runs in a thread of the loop's default executor, so that the loop goes on and no client waits.

Nobody is enlisted when the application raises (which is how some servers tell it that the client
has gone), when it is cancelled, or when it returns without having finished its response. WebSockets
and lifespan pass through untouched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

from workstealing.integrations.wsgi import Headers, Middleware
from workstealing.recruiting.deferral import (
    Deferral,
    Enlister,
    Recruit,
    When,
    current,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_BODIES = ("http.response.body", "http.response.zerocopysend")
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class Response:
    """What `when` receives under plain ASGI: the status and the headers, to read.

    Arguments: status_code, such as 200; headers, as pairs of bytes.
    """

    __slots__ = ("_raw", "_read", "status_code")

    def __init__(self, status_code: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status_code = status_code
        self._raw = headers
        self._read: Headers | None = None

    @property
    def status(self) -> str:
        """The status line, such as "200 OK"."""
        try:
            return f"{self.status_code} {HTTPStatus(self.status_code).phrase}"
        except ValueError:
            return str(self.status_code)

    @property
    def headers(self) -> Headers:
        """The headers; names are found in any case. They are decoded when first asked for."""
        if self._read is None:
            self._read = Headers(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in self._raw
            )
        return self._read


class WorkStealingMiddleware(Middleware[ASGIApplication]):
    """An ASGI application whose requests enlist once answered; arguments as of `Middleware`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass on what is no HTTP request."""
        outer = current.get()
        if scope["type"] != "http" or (outer is not None and not outer.closed):
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(send, self._recruiter, self._when)
        token = current.set(exchange)
        try:
            await self._app(scope, receive, exchange.send)
        except BaseException:
            # The server is still to answer, or the client has gone, or the request was cancelled.
            exchange.drop()
            raise
        finally:
            current.reset(token)
        if not exchange.finished:
            exchange.drop()
        elif exchange.settle():
            exchange.close()


class LoopDeferral(Deferral):
    """A deferral that never blocks an event loop: there a slice goes to a thread; for integrations.

    Arguments: as of Deferral.
    """

    def _enlist(self, recruiter: Enlister) -> None:
        after = getattr(recruiter, "enlist_after", None)
        if after is None:
            # An enlister of the user's own, which is to know what it may do on a loop.
            recruiter.enlist()
        else:
            after(None, None, on_loop=True)

    def _serve(self, recruit: Recruit) -> None:
        recruit.serve_on_loop()


class _Exchange(LoopDeferral):
    """One request: it watches the messages of the response go by, and changes none."""

    _trailers = False
    _start: Message
    finished = False

    def __init__(self, send: Send, recruiter: Enlister, when: When | None) -> None:
        # As Deferral does; a call of its constructor would cost a tenth of the whole.
        self._recruiter = recruiter
        self.when = when
        self._send = send

    def response(self) -> object:
        """Return what a `when` is asked about."""
        return Response(self._start["status"], self._start.get("headers", ()))

    def send(self, message: Message) -> Awaitable[None]:
        """Read a message and pass it on to the server, which is what the caller awaits.

        Where the server does not take it, the application hears of that by an error.
        """
        kind = message["type"]
        if kind == "http.response.start":
            self._start = message
            self._trailers = message.get("trailers", False)
            self.responded = True
            if self.when is not None:
                self.ask()
        elif kind in _BODIES:
            self.finished = not (message.get("more_body") or self._trailers)
        elif kind == "http.response.pathsend":
            self.finished = not self._trailers
        elif kind == "http.response.trailers":
            self.finished = not message.get("more_trailers", False)
        return self._send(message)
