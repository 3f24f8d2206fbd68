"""ASGI middleware: a request enlists at most once, after its response has gone out.

The middleware serves Starlette, FastAPI and every other ASGI application, and needs none of them. A
request is over after the last part of its response, when the application has returned and its
background tasks have ended. The draw runs on the event loop and costs as much as any enlist. A
slice runs in a thread of the loop's default executor, so the loop goes on and no client waits.

A request does not enlist if the application raises an exception, is cancelled, or returns before
the end of its response. (Some servers tell the application by an exception that the client has
gone.) WebSockets and lifespan pass through untouched.
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
    current,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_new = object.__new__
_BODIES = ("http.response.body", "http.response.zerocopysend")
ASGIApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


class AsgiResponse:
    """The response that `when` receives under plain ASGI: status and headers, to read.

    Arguments:
        status_code: such as 200.
        headers: as pairs of bytes.
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
        """The headers; the case of a name does not matter. The first look decodes them."""
        if self._read is None:
            self._read = Headers(
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in self._raw
            )
        return self._read


class WorkStealingMiddleware(Middleware[ASGIApplication]):
    """An ASGI application whose requests enlist once answered; arguments as of `Middleware`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request; pass any other scope on."""
        outer = current.get()
        if scope["type"] != "http" or (outer is not None and not outer.closed):
            await self._app(scope, receive, send)
            return
        # All in one frame, because each call of a function would cost a twentieth of the whole: the
        # constructor of a Deferral, and Deferral.draw_now.
        exchange = _new(_AsgiExchange)
        exchange.recruiter = self._recruiter
        exchange.when = self._when
        exchange.offers = exchange.recruit = exchange.wanted = exchange.known = None
        exchange.responded = exchange.closed = exchange.finished = False
        exchange.server_send = send
        token = current.set(exchange)
        try:
            await self._app(scope, receive, exchange.send)
        except BaseException:
            # The server has yet to answer, the client has gone, or the request was cancelled.
            exchange.drop()
            raise
        finally:
            current.reset(token)
        if not exchange.finished:
            exchange.drop()
        elif self._draw is not None and exchange.offers is None and exchange.responded:
            exchange.recruit = self._draw()
            if exchange.recruit is None:
                exchange.closed = True
            else:
                exchange.close()
        elif exchange.draw_now():
            exchange.close()


class LoopDeferral(Deferral):
    """A deferral that never blocks an event loop: its slice runs in a thread; for integrations.

    Arguments as of Deferral.
    """

    __slots__ = ()

    def _enlist(self, recruiter: Enlister) -> None:
        draw = getattr(recruiter, "draw", None)
        if draw is None:
            # An enlister of the user's own knows what it may do on a loop.
            recruiter.enlist()
        elif (drawn := draw()) is not None:
            drawn.serve_on_loop()

    def _serve(self, recruit: Recruit) -> None:
        recruit.serve_on_loop()


class _AsgiExchange(LoopDeferral):
    """One request: it watches the messages of the response go by, and changes none.

    Arguments as of Deferral. The middleware sets the other attributes: a constructor of this
    class's own would cost a twentieth of the whole.
    """

    __slots__ = ("_start", "_trailers", "finished", "server_send")

    _start: Message
    _trailers: bool
    finished: bool
    server_send: Send

    def response(self) -> object:
        """Return the response object that `when` receives."""
        return AsgiResponse(self._start["status"], self._start.get("headers", ()))

    def send(self, message: Message) -> Awaitable[None]:
        """Read a message and return the server's own sending of it, which the caller awaits.

        The application gets the error of a server that refuses it.
        """
        kind = message["type"]
        if kind == "http.response.start":
            self._start = message
            self._trailers = "trailers" in message and message["trailers"]
            self.responded = True
            if self.when is not None:
                self.ask()
        elif kind in _BODIES:
            more = "more_body" in message and message["more_body"]
            self.finished = not (more or self._trailers)
        elif kind == "http.response.pathsend":
            self.finished = not self._trailers
        elif kind == "http.response.trailers":
            self.finished = not message.get("more_trailers", False)
        return self.server_send(message)
