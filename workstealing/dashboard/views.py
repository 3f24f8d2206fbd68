"""The pages: a Flask blueprint over the queries, behind the guard, and the pages' event streams.

A stream sends a page's data again and again until it has lasted long enough. The stream holds a
thread of the web server meanwhile, so the number of a process's streams and the length of each are
limited. The browser comes back by itself. In a worker with one thread a stream ends after its first
event, and the browser asks again a little later.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from workstealing.clock import seconds_of
from workstealing.dashboard.alarms import with_links
from workstealing.dashboard.charts import RANGES, TEXT_HEADINGS, Charts
from workstealing.dashboard.figures import OwnMinutes
from workstealing.dashboard.fleet_state import Refusals, own_refusals, server_of_client
from workstealing.dashboard.presenting import (
    CACHE_HEADINGS,
    JOB_HEADINGS,
    OUTCOMES_MEAN,
    STRUCTURE_HEADINGS,
    Selection,
    blank_job,
    page,
    selection_of,
)
from workstealing.dashboard.queries import Queries
from workstealing.dashboard.rules import SETTINGS, steer_rule
from workstealing.dashboard.security import (
    HEADERS,
    SESSION_SECONDS,
    Guard,
    Throttle,
    Visitor,
    cookie_name,
    counted_by_fleet,
    is_own_site,
)
from workstealing.dashboard.steering import FleetSettings, steer_dead, steer_job
from workstealing.dashboard.watched import short_id, watch_all
from workstealing.errors import ConfigurationError, MissingExtraError, RefusedError
from workstealing.metrics.events import read_events
from workstealing.metrics.ledger import Ledger, processes, read, server_time
from workstealing.metrics.minutes import checked_ledger_name
from workstealing.metrics.shared_settings import SharedSettings
from workstealing.recruiting import Recruiter

try:
    import flask
except ModuleNotFoundError as error:
    if error.name != "flask":
        raise
    raise MissingExtraError("dashboard", "flask") from error

logger = logging.getLogger("workstealing")

EVERY_SECONDS = 2.0
LASTS_SECONDS = 300.0
SHORTEST_SECONDS = 0.001
MOST_STREAMS = 16

PREFIX = "/workstealing"
"""The blueprint's address, unless register_blueprint gives another one."""

LONGEST_FORM = 64 * 1024


class Streams:
    """The streams of this process.

    Arguments:
        every: the time between two events.
        lasts: the time after which a stream ends, both in seconds or as a timedelta.
        most: how many streams there are at a time.
        pause: waits some seconds.

    Raises: ConfigurationError for a time below 1 ms, and for no streams.
    """

    def __init__(
        self,
        every: float | dt.timedelta = EVERY_SECONDS,
        lasts: float | dt.timedelta = LASTS_SECONDS,
        most: int = MOST_STREAMS,
        pause: Callable[[float], Any] | None = None,
    ) -> None:
        self._every = seconds_of(every, "every", SHORTEST_SECONDS)
        self._events = max(1, round(seconds_of(lasts, "lasts", SHORTEST_SECONDS) / self._every))
        if not isinstance(most, int) or most < 1:
            raise ConfigurationError(f"most={most!r} is no such number: give a number from 1 on")
        self._pause = pause or threading.Event().wait
        self._free = threading.BoundedSemaphore(most)

    def enter(self) -> bool:
        """Take a place for one more stream; False if there is none. `leave` gives it back."""
        return self._free.acquire(blocking=False)

    def leave(self) -> None:
        """Give a place back."""
        self._free.release()

    def events(self, data: Callable[[], Any], *, many: bool = True) -> Iterator[bytes]:
        """Yield the data as events; the first at once.

        Arguments:
            data: returns data for JSON.
            many: False for one event alone.
        """
        retry = round(self._every * 1000)
        yield f"retry: {retry}\n\n".encode()
        for number in range(self._events if many else 1):
            if number:
                self._pause(self._every)
            # JSON has no line ends of its own, so no name can end an event.
            yield b"data: " + as_json(data()).encode("ascii") + b"\n\n"


def as_json(data: Any) -> str:
    """Return data as JSON in ASCII; no name can end an event or a script element in it."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def create_dashboard(
    recruiter: Recruiter,
    client: Any,
    *,
    token: str | None = None,
    view_token: str | None = None,
    name: str | None = None,
    structures: Iterable[Any] = (),
    streams: Streams | None = None,
    survey: str | Path | None = None,
    runbook: str | None = None,
) -> flask.Blueprint:
    """Return the dashboard: `app.register_blueprint(create_dashboard(recruiter, client, ...))`.

    Arguments:
        recruiter: its jobs are shown, and run.
        client: a blocking client of redis-py, for the ledger and the fleet's settings.
        token: the admin's, which allows steering.
        view_token: allows looking.
        name: of the ledger, None: that of the recruiter's own one, else "default".
        structures: shown beside those of the recruiter's jobs, see
            `workstealing.dashboard.Watched`.
        streams: how often and how long pages are kept up to date.
        survey: the file into which `workstealing survey --json` was printed last, shown on a page
            of its own.
        runbook: the http address at which your people read docs/runbook.md: alarms link to its
            sections.

    Without a token only clients on this machine are answered, and may only look. Raises:
    ConfigurationError. No round trip.
    """
    if not isinstance(recruiter, Recruiter):
        raise ConfigurationError(
            f"the dashboard shows a Recruiter, not a {type(recruiter).__name__}"
        )
    if runbook is not None and not re.fullmatch(r"https?://[^\s#]+", str(runbook)):
        raise ConfigurationError(
            f"runbook is {runbook!r}; expected an http address without a fragment, of a page with"
            " the sections of docs/runbook.md"
        )
    name = _own_ledger(recruiter) if name is None else checked_ledger_name(name)
    guard = Guard(token, view_token)
    things = list(structures)
    watch_all(things, ())
    fleet = SharedSettings(client, name, "an admin of the dashboard")
    queries = Queries(
        recruiter.stats,
        lambda: read(client, name),
        OwnMinutes(),
        fleet.settings,
        lambda: watch_all(things, recruiter.jobs().values()),
        processes=lambda: processes(client, name),
        server_now=lambda: server_time(client, name),
        where=server_of_client(client),
        refusal=Refusals(client, name),
        own_refusals=lambda: own_refusals(recruiter),
        events=lambda: read_events(client, name, most=_EVENTS_READ),
    )
    views = _Views(
        guard=guard,
        throttle=Throttle(counted_by_fleet(client, name)),
        queries=queries,
        charts=Charts(
            queries.snapshot, lambda minutes, end: read(client, name, minutes, before=end)
        ),
        fleet=fleet,
        recruiter=recruiter,
        name=name,
        streams=streams or Streams(),
        survey=None if survey is None else Path(survey),
        runbook=runbook,
    )
    return views.blueprint()


def _own_ledger(recruiter: Recruiter) -> str:
    """Return the name of the recruiter's ledger, "default" without one. Raises: for several."""
    own = sorted({hook.name for hook in recruiter.hooks() if isinstance(hook, Ledger)})
    if len(own) > 1 and "default" not in own:
        raise ConfigurationError(
            f"the recruiter has several ledgers: give create_dashboard(name=) {', or '.join(own)}"
        )
    return own[0] if len(own) == 1 else "default"


class _Views:
    """One dashboard's views."""

    def __init__(
        self,
        *,
        guard: Guard,
        throttle: Throttle,
        queries: Queries,
        charts: Charts,
        fleet: FleetSettings,
        recruiter: Recruiter,
        name: str,
        streams: Streams,
        survey: Path | None,
        runbook: str | None,
    ) -> None:
        self._guard, self._throttle = guard, throttle
        self._queries, self._charts, self._fleet = queries, charts, fleet
        self._recruiter, self._name, self._streams = recruiter, name, streams
        self._survey_file, self._runbook = survey, runbook

    def blueprint(self) -> flask.Blueprint:
        """Return the blueprint that holds all views."""
        suffix = "" if self._name == "default" else "_" + self._name.replace(".", "_")
        made = flask.Blueprint(
            f"workstealing_dashboard{suffix}",
            __name__,
            url_prefix=PREFIX,
            template_folder="templates",
            static_folder="static",
            static_url_path="/assets",
        )
        made.before_request(self._before)
        made.after_request(_after)
        made.record(_after_strays)
        # Each rule names its methods: an address that changes state answers 405 to GET and HEAD.
        made.add_url_rule("/", "index", self._index, methods=["GET"])
        made.add_url_rule("/view.json", "view", self._view, methods=["GET"])
        made.add_url_rule("/events", "events", self._events, methods=["GET"])
        if self._survey_file is not None:
            made.add_url_rule("/survey", "survey", self._survey, methods=["GET"])
        made.add_url_rule("/login", "login", self._login, methods=["POST"])
        made.add_url_rule("/logout", "logout", self._logout, methods=["POST"])
        made.add_url_rule("/jobs", "jobs", self._jobs, methods=["POST"])
        made.add_url_rule("/dead", "dead", self._dead, methods=["POST"])
        made.add_url_rule("/rules", "rules", self._rules, methods=["POST"])
        return made

    # ---- who may ---------------------------------------------------------------------------------

    def _before(self) -> Any:
        request = flask.request
        if request.method == "POST" and (request.content_length or 0) > LONGEST_FORM:
            return _plain("the form is too large", 413)
        if "Transfer-Encoding" in request.headers:
            return _plain("the form has no Content-Length", 411)
        view = (request.endpoint or "").rpartition(".")[2]
        if self._guard.wants_login and view in ("login", "static"):
            return None
        cookie = request.cookies.get(self._cookie())
        is_trial = self._guard.is_trial(request.headers, cookie, self._throttle.knows)
        wait = self._throttle.enter(request.remote_addr) if is_trial else 0.0
        if wait > 0:
            return _too_many(_plain(_GUESSED.format(math.ceil(wait)), 429), wait)
        visitor = self._guard.visitor(request.remote_addr, request.host, request.headers, cookie)
        if is_trial:
            self._tried(request.remote_addr, visitor is not None)
        flask.g.workstealing_visitor = visitor
        if visitor is not None:
            if cookie and visitor.csrf:
                self._throttle.remember(cookie)
            return None
        if not self._guard.wants_login:
            return _plain(
                "without a token the dashboard answers clients on its own machine only:"
                " give create_dashboard() a token",
                403,
            )
        response = self._login_page("", 401) if view == "index" else _plain("log in first", 401)
        if cookie:
            # The session's token is gone, so the cookie would be a guess each time that it comes.
            self._forget_cookie(response)
        return response

    def _login(self) -> Any:
        request = flask.request
        if not is_own_site(request.headers.get("Sec-Fetch-Site")):
            return _plain("another site sent this form", 403)
        if not self._guard.wants_login:
            return _plain("there is no token to log in with", 403)
        wait = self._throttle.enter(request.remote_addr)
        if wait > 0:
            return _too_many(self._login_page(_GUESSED.format(math.ceil(wait)), 429), wait)
        role = self._guard.role_of(request.form.get("token", ""))
        self._tried(request.remote_addr, role is not None)
        if role is None:
            return self._login_page("This token is not known here.", 403)
        response = flask.redirect(flask.url_for(".index"), 303)
        response.set_cookie(
            self._cookie(),
            self._guard.new_session(role),
            max_age=SESSION_SECONDS,
            path=flask.url_for(".index"),
            secure=request.is_secure,
            httponly=True,
            samesite="Strict",
        )
        return response

    def _tried(self, address: str | None, was_right: bool) -> None:
        if was_right:
            self._throttle.right(address)
            return
        logger.warning("a login to the dashboard from %s failed", address)
        self._throttle.wrong()

    def _cookie(self) -> str:
        return cookie_name(flask.request.host, flask.url_for(".index"), self._name)

    def _logout(self) -> Any:
        if not self._is_meant():
            return _plain(_FOREIGN, 403)
        response = flask.redirect(flask.url_for(".index"), 303)
        self._forget_cookie(response)
        return response

    def _forget_cookie(self, response: Any) -> None:
        response.delete_cookie(
            self._cookie(),
            path=flask.url_for(".index"),
            secure=flask.request.is_secure,
            httponly=True,
            samesite="Strict",
        )

    def _is_meant(self) -> bool:
        visitor: Visitor = flask.g.workstealing_visitor
        fetch_site = flask.request.headers.get("Sec-Fetch-Site")
        return self._guard.allows_change(visitor, flask.request.form.get("csrf", ""), fetch_site)

    # ---- looking ---------------------------------------------------------------------------------

    def _page(self) -> dict[str, Any]:
        visitor: Visitor = flask.g.workstealing_visitor
        return self._shown(visitor.role, _selection())

    def _shown(self, role: str, selection: Selection) -> dict[str, Any]:
        charts = self._charts.of(selection.range)
        return page(self._queries.snapshot(), self._name, role, selection, charts)

    def _index(self) -> Any:
        return self._html("", "", 200)

    def _view(self) -> Any:
        return flask.Response(as_json(self._page()), mimetype="application/json")

    def _events(self) -> Any:
        if not self._streams.enter():
            return _plain("too many pages are open: this one asks again later", 503)
        role, selection = flask.g.workstealing_visitor.role, _selection()

        def data() -> dict[str, Any]:
            return self._shown(role, selection)

        # A worker with one thread could not answer anybody else meanwhile.
        many = bool(flask.request.environ.get("wsgi.multithread"))
        response = flask.Response(
            self._streams.events(data, many=many), mimetype="text/event-stream"
        )
        response.headers["X-Accel-Buffering"] = "no"
        # The generator's own end is not enough, because a generator that never began has none.
        response.call_on_close(_once(self._streams.leave))
        return response

    def _html(self, said: str, problem: str, status: int) -> Any:
        shown = self._page()
        visitor: Visitor = flask.g.workstealing_visitor
        html = flask.render_template(
            "workstealing/dashboard.html",
            page=shown,
            # It stands inside a script element that is not executed, and JSON.parse reads it.
            data=as_json(shown),
            blank_job=blank_job(),
            job_headings=list(JOB_HEADINGS),
            job_meanings={**JOB_HEADINGS, "Outcomes, last hour": OUTCOMES_MEAN},
            structure_headings=list(STRUCTURE_HEADINGS),
            structure_meanings=STRUCTURE_HEADINGS,
            cache_meanings=CACHE_HEADINGS,
            ranges=RANGES.values(),
            rule_settings=SETTINGS,
            chart_headings=TEXT_HEADINGS,
            selection=_selection(),
            visitor=visitor,
            has_survey=self._survey_file is not None,
            runbook=self._runbook,
            with_links=with_links,
            has_session=bool(visitor.csrf),
            said=said,
            problem=problem,
        )
        # The template's indentation is for us, and would be a tenth of a long page.
        return flask.Response(_INDENTATION.sub("\n", html), status, mimetype="text/html")

    def _survey(self) -> Any:
        # Loaded here: most dashboards show no survey.
        from workstealing.survey import page as survey_page
        from workstealing.survey.report import load_report

        assert self._survey_file is not None, "the address is there only with a file"
        try:
            report = load_report(self._survey_file)
            picture, lines = survey_page.treemap(report), list(survey_page.body(report))
            summary = survey_page.summary(report)
            at = dt.datetime.fromtimestamp(report["at"], dt.UTC)
        except (ConfigurationError, *_MALFORMED) as error:
            # Where the file lies is no business of a viewer's.
            logger.warning("the dashboard cannot show the last survey: %s", error)
            return _plain(_NO_SURVEY, 404)
        html = flask.render_template(
            "workstealing/survey.html",
            # These are HTML, in which all names are escaped.
            summary=summary,
            picture=picture,
            legend=survey_page.LEGEND,
            body="\n".join(lines),
            at=at.strftime("%Y-%m-%d %H:%M UTC"),
        )
        return flask.Response(html, 200, mimetype="text/html")

    def _login_page(self, problem: str, status: int) -> Any:
        html = flask.render_template("workstealing/login.html", problem=problem)
        return flask.Response(html, status, mimetype="text/html")

    # ---- steering --------------------------------------------------------------------------------

    def _jobs(self) -> Any:
        form = flask.request.form
        wanted = form.get("job", "")

        def act() -> str:
            snapshot = self._queries.snapshot()
            job = next((each.name for each in snapshot.jobs if short_id(each.name) == wanted), None)
            if job is None:
                raise RefusedError("this job is not known any more")
            action = form.get("action", "")
            done = steer_job(
                action,
                job,
                form.get("rate", ""),
                self._fleet,
                self._recruiter,
                sure=form.get("sure") == "yes",
            )
            if action in ("pause", "resume", "rate", "clear") and not snapshot.is_fleet:
                done += ". But no process writes the ledger: is follow(recruiter, ledger) in place?"
            return done

        return self._act(act)

    def _dead(self) -> Any:
        form = flask.request.form

        def act() -> str:
            watched = self._queries.structure(form.get("structure", ""))
            if watched is None:
                raise RefusedError("this structure is not shown any more")
            sure = form.get("sure") == "yes"
            return steer_dead(form.get("action", ""), watched, form.get("item", ""), sure=sure)

        return self._act(act)

    def _rules(self) -> Any:
        form = flask.request.form

        def act() -> str:
            queue = self._queries.rules(form.get("queue", ""))
            if queue is None:
                raise RefusedError("this queue is not shown any more")
            return steer_rule(form.get("action", ""), queue, form, sure=form.get("sure") == "yes")

        return self._act(act)

    def _act(self, act: Callable[[], str]) -> Any:
        request = flask.request
        visitor: Visitor = flask.g.workstealing_visitor
        if not visitor.may_steer:
            return _plain("only an admin may do this", 403)
        if not self._is_meant():
            return _plain(_FOREIGN, 403)
        said = problem = ""
        try:
            said = act()
        except RefusedError as error:
            problem = str(error)
        self._queries.forget()
        logger.info("an admin of the dashboard at %s: %s", request.remote_addr, said or problem)
        status = 409 if problem else 200
        if request.accept_mimetypes.best == "application/json":
            answer = as_json({"said": said, "problem": problem})
            return flask.Response(answer, status, mimetype="application/json")
        return self._html(said, problem, status)


def _selection() -> Selection:
    return selection_of(flask.request.args)


_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)
_EVENTS_READ = 200
_INDENTATION = re.compile(r"\n\s+")
_NO_SURVEY = "there is no result of a survey yet: run workstealing survey --json > FILE"
_FOREIGN = "this form does not come from a page of this session: load the page anew"


def _after(response: flask.Response) -> flask.Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    if flask.request.endpoint and flask.request.endpoint.endswith(".static"):
        # It is the same for everybody; the browser asks again each time, and 304 answers it.
        response.headers["Cache-Control"] = "no-cache"
    return response


def _after_strays(state: Any) -> None:
    """Give our headers also to the answers below our address that no view of ours makes."""
    below = (state.url_prefix or "").rstrip("/") + "/"

    def after(response: flask.Response) -> flask.Response:
        if flask.request.url_rule is None and flask.request.path.startswith(below):
            return _after(response)
        return response

    state.app.after_request(after)


_GUESSED = "Too many wrong tokens were given: try again in {} s."


def _too_many(response: flask.Response, wait: float) -> flask.Response:
    response.headers["Retry-After"] = str(math.ceil(wait))
    return response


def _plain(text: str, status: int) -> flask.Response:
    return flask.Response(text + "\n", status, mimetype="text/plain")


def _once(call: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that makes the call the first time only."""
    left = iter((call,))

    def called() -> None:
        for each in left:
            each()

    return called
