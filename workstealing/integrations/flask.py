"""The Flask extension: a request enlists at most once, after its response has gone out.

See `workstealing.integrations.wsgi` for what "gone out" means and for who waits all the same.
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
    """A Flask extension by which every request offers its spare moment when it has been answered.

    Arguments: app, or None and init_app() later; recruiter, by default the one behind
    `workstealing.enlist`; when, which receives the flask.Response that is about to go out, error
    pages included, while the request is still at hand, and says whether this request enlists; by
    default every one does. A view decorated with `Recruiter.enlists` decides for its own request
    instead. For decorated views only: `when=lambda response: False`.

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

        Arguments: app, which may be one of several. Raises: ConfigurationError when this app has
        the extension already; nothing is changed then.
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
    """A request that knows whose responses are meant, and what Flask answers."""

    flask_response: flask.Response | None = None

    def __init__(
        self,
        app: flask.Flask,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        recruiter: Enlister,
        when: When | None,
    ) -> None:
        # As Exchange does; a call of its constructor would cost a tenth of the whole.
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
        """Return Flask's response, or what the server was told of it.

        Flask names none when finishing the response has failed itself.
        """
        if self.flask_response is not None:
            return self.flask_response
        return flask.Response(status=self._status, headers=list(self._headers))

    def is_inert(self, result: object) -> bool:
        """Say whether the body is whole, and sending and closing it is Werkzeug's own code alone.

        So nothing was registered by `call_on_close`, neither the response's class nor the response
        has a way of its own, and no middleware further in has put something around it.
        """
        response = self.flask_response
        if type(result) is not ClosingIterator or response is None:
            return False
        try:
            # What Flask returns closes its response last, and that by a method of the class.
            return (
                type(response.response) in _INERT
                and not response._on_close  # noqa: SLF001 - of another kind nobody knows
                and result._callbacks[-1].__self__ is response  # type: ignore[attr-defined] # noqa: SLF001
                and _sends_as_werkzeug(type(response))  # type: ignore[arg-type] # a class has a hash
            )
        except (AttributeError, LookupError):
            return False


@cache
def _sends_as_werkzeug(kind: type[flask.Response]) -> bool:
    """Say whether a class of responses overrides nothing that runs when one is sent."""
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
    """Return what finishes a response as the app does, and tells the request what it is.

    It comes after every after_request function, whatever the order of registration, so `when` sees
    the response that goes out: a 304 that one of them made, say. (The signal `request_finished`
    would do as well, at ten times the price.)
    """
    finish = app.process_response

    def process_response(response: flask.Response) -> flask.Response:
        response = finish(response)
        exchange = current.get()
        if type(exchange) is _FlaskExchange and exchange.app is app:
            exchange.flask_response = response
            exchange.responded = True
            # Now, while Flask's request is still at hand.
            if exchange.when is not None:
                exchange.ask()
        return response

    return process_response
