"""The Flask extension: a request enlists at most once, after its response has gone out.

`workstealing.integrations.wsgi` defines "gone out", and names the clients that wait all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.wsgi import Exchange, or_default
from workstealing.recruiting.deferral import Enlister, When, current

try:
    import flask
    from werkzeug.wrappers import Response
    from werkzeug.wsgi import ClosingIterator
except ModuleNotFoundError as error:
    if error.name != "flask":
        raise
    raise MissingExtraError("flask", "flask") from error

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_NAME = "workstealing"
# Sending these runs no code of the application's, unless the response has some.
_INERT = frozenset({list, tuple})
_SENDING = ("close", "get_app_iter", "iter_encoded")


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
        self._recruiter = or_default(recruiter)
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
        app.process_response = _telling(app)  # type: ignore[assignment, method-assign]
        app.wsgi_app = _FlaskApplication(app, app.wsgi_app, self._recruiter, self._when)  # type: ignore[method-assign]


class _FlaskExchange(Exchange):
    """A request of one Flask app, with Flask's own response."""

    flask_response: flask.Response | None = None

    def __init__(
        self,
        app: flask.Flask,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        recruiter: Enlister,
        when: When | None,
    ) -> None:
        # The same as in Exchange; a call of its constructor would cost a tenth of the whole.
        self._recruiter = recruiter
        self.when = when
        self.environ = environ
        self._start_response = start_response
        self.app = app

    def started(self) -> None:
        """Ask the governing `when` unless it was asked about Flask's own response."""
        if self.flask_response is None:
            self.ask()

    def response(self) -> object:
        """Return Flask's response, or one of the status and headers that the server has.

        Flask has no response if its own finishing of the response has failed.
        """
        if self.flask_response is not None:
            return self.flask_response
        return flask.Response(status=self._status, headers=list(self._headers))

    def is_inert(self, result: object) -> bool:
        """Say whether the body is whole, and only Werkzeug's own code sends and closes it.

        Then `call_on_close` holds no function, the response's class overrides no such method, and
        no middleware further in has wrapped the response.
        """
        response = self.flask_response
        if type(result) is not ClosingIterator or response is None:
            return False
        try:
            # Flask's result closes its response last, by a method of the class.
            return (
                type(response.response) in _INERT
                and not response._on_close  # noqa: SLF001 - a class may override it
                and result._callbacks[-1].__self__ is response  # type: ignore[attr-defined] # noqa: SLF001
                and _sends_as_werkzeug(type(response))  # type: ignore[arg-type] # a class has a hash
            )
        except (AttributeError, LookupError):
            return False


@cache
def _sends_as_werkzeug(kind: type[flask.Response]) -> bool:
    """Say whether a class of responses overrides no method of the sending."""
    return all(getattr(kind, name) is getattr(Response, name) for name in _SENDING)


class _FlaskApplication:
    """The WSGI side of a Flask application."""

    def __init__(
        self,
        app: flask.Flask,
        wsgi_app: WSGIApplication,
        recruiter: Enlister,
        when: When | None,
    ) -> None:
        self._app = app
        self._wsgi_app = wsgi_app
        self._recruiter = recruiter
        self._when = when

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        outer = current.get()
        if outer is not None and not outer.closed:
            return self._wsgi_app(environ, start_response)
        exchange = _FlaskExchange(self._app, environ, start_response, self._recruiter, self._when)
        return exchange.answer(self._wsgi_app)


def _telling(app: flask.Flask) -> Callable[[flask.Response], flask.Response]:
    """Return a function that finishes a response like the app, and hands it to the request.

    The returned function runs after every after_request function, in any order of registration, so
    `when` sees the final response, for example a 304 of such a function. The signal
    `request_finished` would serve as well, at ten times the price.
    """
    finish = app.process_response

    def process_response(response: flask.Response) -> flask.Response:
        response = finish(response)
        exchange = current.get()
        if type(exchange) is _FlaskExchange and exchange.app is app:
            exchange.flask_response = response
            exchange.responded = True
            # Now, while Flask still holds the request.
            if exchange.when is not None:
                exchange.ask()
        return response

    return process_response
