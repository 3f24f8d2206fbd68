"""The Flask extension: a request enlists at most once, after its response has gone out.

See `workstealing.integrations.wsgi` for what "gone out" means and for who waits all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.integrations.wsgi import or_default, serve
from workstealing.recruiting.deferral import Deferral, Enlister, When, current, is_deferring

try:
    import flask
except ModuleNotFoundError as error:
    if error.name != "flask":
        raise
    raise MissingExtraError("flask", "flask") from error

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_NAME = "workstealing"


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
        # The signal comes after every after_request function, whatever the order of registration,
        # so `when` sees the response that goes out: a 304 that one of them made, say.
        flask.request_finished.connect(_respond, app)
        app.wsgi_app = _FlaskApplication(app, app.wsgi_app, self._recruiter, self._when)  # type: ignore[method-assign]


class _FlaskDeferral(Deferral):
    """A deferral that knows whose responses are meant."""

    __slots__ = ("app",)

    def __init__(self, app: flask.Flask, recruiter: Enlister, when: When | None) -> None:
        super().__init__(recruiter, when)
        self.app = app


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
        if is_deferring():
            return self._wsgi_app(environ, start_response)
        deferral = _FlaskDeferral(self._app, self._recruiter, self._when)

        def started(status: str, headers: Sequence[tuple[str, str]]) -> None:
            # Flask sends no signal when finishing the response failed itself; a `when` is still
            # owed the response, and by now it is known to its headers.
            if not deferral.responded:
                deferral.respond(flask.Response(status=status, headers=list(headers)))

        return serve(self._wsgi_app, environ, start_response, deferral, started)


def _respond(sender: flask.Flask, response: flask.Response, **_: object) -> None:
    """Tell this request's deferral, if it is ours, what Flask answers."""
    deferral = current.get()
    if isinstance(deferral, _FlaskDeferral) and deferral.app is sender:
        deferral.respond(response)
