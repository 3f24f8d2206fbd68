"""The Flask extension: a request enlists at most once, after its response has gone out.

`workstealing.integrations.wsgi` defines "gone out", and names the clients that wait all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.wsgi import Exchange, WorkStealingMiddleware, checked_setting
from workstealing.recruiting.deferral import Enlister, When, current

try:
    import flask
    from werkzeug.wrappers import Response
    from werkzeug.wsgi import ClosingIterator
except ModuleNotFoundError as error:
    if error.name != "flask":
        raise
    raise MissingExtraError("flask", "flask") from error

_NAME = "workstealing"
# Sending these runs no code of the application's, unless the response has some.
_INERT = frozenset({list, tuple})
_SENDING = ("close", "get_app_iter", "iter_encoded")
_RESPONSE = flask.Response
_ENCODING = getattr(Response("").iter_encoded(), "gi_code", object())


class WorkStealing:
    """A Flask extension: each request enlists after its response.

    Arguments:
        app: or None and init_app() later.
        recruiter: by default the one behind `workstealing.enlist`.
        when: it receives the flask.Response before it goes out, an error page as well, and says
            whether this request enlists, None: each request enlists.

    `when` is called while Flask still holds the request. A view decorated with `Recruiter.enlists`
    decides for its own request instead. For decorated views only: `when=lambda response: False`.

    Inside another integration of this package it does nothing: the outermost one enlists.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        recruiter: Enlister | None = None,
        when: When | None = None,
    ) -> None:
        self._recruiter = checked_setting(recruiter, when)
        self._when = when
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Let the requests of this application enlist.

        Arguments:
            app: perhaps one of several.

        Raises: ConfigurationError if this app has the extension already; then nothing has changed.
        """
        if _NAME in app.extensions:
            raise ConfigurationError(
                f"the Flask app {app.name!r} has the WorkStealing extension already;"
                " install it once"
            )
        app.extensions[_NAME] = self
        application = _FlaskApplication(app, self._recruiter, self._when)
        # A bound method is called quicker than an object.
        app.wsgi_app = application.__call__  # type: ignore[method-assign]


class _FlaskExchange(Exchange):
    """A request of one Flask app, with Flask's own response once that is known."""

    __slots__ = ()

    middleware: _FlaskApplication
    known: flask.Response | None

    def offer(self, recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
        """As of `Deferral`; a `when` is asked about Flask's own response."""
        if when is not None:
            self.middleware.tell()
        return super().offer(recruiter, when, by)

    def started(self) -> None:
        """Ask the governing `when` unless it was asked about Flask's own response."""
        if self.known is None:
            self.ask()

    def response(self) -> object:
        """Return Flask's response, or one of the status and headers that the server has.

        Flask has no response if its own finishing of the response has failed.
        """
        if self.known is not None:
            return self.known
        return flask.Response(status=self.status, headers=list(self.headers))

    def is_inert(self, result: object) -> bool:
        """Say whether the body is whole, and only Werkzeug's own code sends and closes it.

        Then `call_on_close` holds no function, the response's class overrides no such method, and
        no middleware further in has wrapped the response.
        """
        if type(result) is not ClosingIterator:
            return False
        try:
            # Werkzeug closes the encoding of the parts first, and then, by a method of the class,
            # the response.
            callbacks: Any = result._callbacks  # noqa: SLF001
            encoding, closing = callbacks
            response = closing.__self__
            kind: Any = type(response)
            if (
                type(response.response) in _INERT
                and not response._on_close  # noqa: SLF001 - a class may override it
                and encoding.__self__.gi_code is _ENCODING
                and (kind is _RESPONSE or _sends_as_werkzeug(kind))
            ):
                return True
        except (AttributeError, TypeError, ValueError):
            return False
        if self.known is None and isinstance(response, flask.Response):
            # For the `when` of a function that the body calls.
            self.known = response
        return False


@cache
def _sends_as_werkzeug(kind: type[flask.Response]) -> bool:
    """Say whether a class of responses overrides no method of the sending."""
    return all(getattr(kind, name) is getattr(Response, name) for name in _SENDING)


class _FlaskApplication(WorkStealingMiddleware):
    """The WSGI side of a Flask application."""

    def __init__(self, app: flask.Flask, recruiter: Enlister, when: When | None) -> None:
        super().__init__(app.wsgi_app, recruiter, when)
        self._exchange = _FlaskExchange
        self._inert = frozenset()
        self.app = app
        self._is_telling = False
        if when is not None:
            self.tell()

    def tell(self) -> None:
        """Let the app hand its responses to their requests, from the next one on, for a `when`.

        The responses are those after every after_request function, in any order of registration, so
        `when` sees the final one, for example a 304 of such a function. The signal
        `request_finished` would serve as well, at ten times the price. Without a `when`, requests
        are spared this.
        """
        if not self._is_telling:
            # Two threads may come here at once: a response that is handed over twice is asked about
            # once.
            self.app.process_response = _telling(self.app)  # type: ignore[assignment, method-assign]
            self._is_telling = True


def _telling(app: flask.Flask) -> Callable[[flask.Response], flask.Response]:
    """Return a function that finishes a response like the app, and hands it to the request."""
    finish = app.process_response

    def process_response(response: flask.Response) -> flask.Response:
        response = finish(response)
        exchange = current.get()
        if (
            type(exchange) is _FlaskExchange
            and exchange.middleware.app is app
            and exchange.known is not response
        ):
            # Now, while Flask still holds the request.
            exchange.respond(response)
        return response

    return process_response
