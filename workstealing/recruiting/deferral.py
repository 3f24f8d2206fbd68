"""Deferrals: an enlist waits until the response has gone out.

A web integration sets `current` for the length of one request. A handler decorated with
`Recruiter.enlists` finds the deferral there and hands its enlist over, so the client does not wait.
The integration closes the deferral after the last byte. Code without an integration finds None.

Nearly every request is dismissed. So an integration that holds a whole response draws at once, by
`draw_now`. Such an integration puts nothing around the response unless this request is recruited.

This module knows no framework and no protocol. The integration knows its responses, and the moment
when one has gone out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting.faults import FaultLog, HostTimeouts, shown

# `when` receives the integration's own response object, for example a flask.Response. This module
# cannot name that type. Only the truth of the answer counts.
When = Callable[[Any], object]


class Enlister(Protocol):
    """A Recruiter, or an object of the user's own with the method `enlist`.

    A Recruiter also has `draw`, which returns None for a dismissed caller, or a `Recruit`, whose
    slice can wait until the response has gone out.
    """

    def enlist(self) -> object:
        """Offer this process's spare moment."""
        ...


class Recruit(Protocol):
    """A caller who has won a draw and has not served yet."""

    def serve(self) -> object:
        """Do the slice, here and now."""
        ...

    def serve_on_loop(self) -> object:
        """Do the slice in a thread of the running event loop's executor, without waiting."""
        ...

    def skip(self) -> object:
        """Count this recruit as SKIPPED, because it has no moment for a slice."""
        ...


when_faults = FaultLog(SYSTEM_CLOCK)
if hasattr(os, "register_at_fork"):
    # A forked child must not wait for a lock whose holder stayed behind in its parent.
    os.register_at_fork(after_in_child=when_faults.after_fork)


def is_host_timeout(recruiter: Enlister, error: BaseException) -> bool:
    """Say whether the error of a user's function must reach the host; for integrations."""
    # An enlister of the user's own has registered no classes.
    asked = getattr(recruiter, "is_host_timeout", HostTimeouts().include)
    return bool(asked(error))


def is_wanted(recruiter: Enlister, when: When, result: object) -> bool:
    """Ask a user's `when` whether to enlist after that result; for integrations.

    An error of `when` is logged once a minute and counts as no. Raises: only a host's time-out.
    """
    try:
        return bool(when(result))
    except Exception as error:
        if is_host_timeout(recruiter, error):
            raise
        when_faults.report(f"when= {_name_of(when)}", error)
        return False


def _name_of(when: object) -> str:
    name = getattr(when, "__qualname__", None)
    return name if isinstance(name, str) else shown(when)


class Deferral:
    """One request's enlist, put off until its response has gone out; it happens at most once.

    Arguments:
        recruiter_default: the integration's own offer, which stands unless a decorated handler
            makes one.
        when_default: as `recruiter_default`.
        when_default: None: every response enlists.

    One deferral belongs to one request. Threads do not share it.
    """

    # A request makes one of these, and slots are set at half the price of a __dict__.
    __slots__ = (
        "closed",
        "known",
        "offers",
        "recruit",
        "recruiter",
        "responded",
        "wanted",
        "when",
    )

    responded: bool
    """Whether the response is known."""

    closed: bool
    """Whether the request is over."""

    def __init__(self, recruiter_default: Enlister, when_default: When | None = None) -> None:
        self.recruiter = recruiter_default
        self.when = when_default
        self.offers: dict[object, tuple[Enlister, When | None]] | None = None
        self.recruit: Recruit | None = None  # by `draw_now`
        self.known: object = None
        self.wanted: bool | None = None  # the answer of `when`; None: it was not asked
        self.responded = self.closed = False

    def offer(self, recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
        """Let this recruiter and this `when` govern the request; the last offer wins.

        Arguments:
            when: it receives the response object and says whether to enlist, None: always.
            by: a hashable that `withdraw` will name.

        Returns: False if the request is over already, for example in a thread that copied its
        context. Then nothing is deferred, and the caller enlists at once.
        """
        if self.closed:
            return False
        if self.recruit is None:
            if self.offers is None:
                self.offers = {}
            # A repeated offer moves to the end: it is the last one now.
            self.offers.pop(by, None)
            self.offers[by] = self.recruiter, self.when = recruiter, when
            self.wanted = None
        return True

    def withdraw(self, by: object) -> None:
        """Take an offer back, because its function has raised. The last other offer governs then.

        Without another offer nobody enlists, not even by the integration's own offer.

        Arguments:
            by: as given to offer().
        """
        if self.recruit is not None or self.offers is None:
            return
        self.offers.pop(by, None)
        others = list(self.offers.values())
        self.recruiter, self.when = others[-1] if others else (self.recruiter, _never)
        self.wanted = None

    def respond(self, response: object) -> None:
        """Take the response, and ask the governing `when` about it.

        `when` is asked now, while the framework still holds the request. A later respond() replaces
        an earlier one, for example with an error page. The `when` of a later offer() is asked at
        close().
        """
        if self.closed:
            return
        self.known = response
        self.responded = True
        if self.when is not None:
            self.ask()

    def draw_now(self) -> bool:
        """Draw for this request now; its response is known, and no code of it is left to run.

        Returns: True if a slice follows at close(). Otherwise the request is over for this package,
        and its integration may let go of the response. A dismissed request costs as much as a
        dismissed enlist.
        """
        if self.responded and (self.when is None or self._is_wanted()):
            try:
                draw = self.recruiter.draw  # type: ignore[attr-defined]
            except AttributeError:
                # An enlister of the user's own draws when it enlists.
                return True
            recruit = draw()
            if recruit is not None:
                self.recruit = recruit
                return True
        self.closed = True
        return False

    def close(self) -> None:
        """Enlist if the response allows it; call this when the last byte has gone out.

        Only the first call counts. Without a respond() before it nobody enlists, because the server
        has yet to answer with an error of its own.
        """
        if self.closed:
            return
        recruit = self.recruit
        wanted = recruit is not None or self._is_wanted()
        # Before the enlist, so code inside the slice finds no request to defer to.
        self.closed = True
        if recruit is not None:
            self._serve(recruit)
        elif wanted:
            self._enlist(self.recruiter)

    def drop(self) -> None:
        """End the request without an enlist, because its client would have to wait for it.

        A recruit of `draw_now` is SKIPPED.
        """
        if not self.closed:
            self.closed = True
            if self.recruit is not None:
                self.recruit.skip()

    def _enlist(self, recruiter: Enlister) -> None:
        """Enlist here and now; an integration that may not block overrides this."""
        recruiter.enlist()

    def _serve(self, recruit: Recruit) -> None:
        """Do a recruit's slice here and now; see `_enlist`."""
        recruit.serve()

    def _is_wanted(self) -> bool:
        if not self.responded:
            return False
        if self.when is None:
            return True
        if self.wanted is None:
            self.ask()
        return bool(self.wanted)

    def response(self) -> object:
        """Return the response object that `when` receives."""
        return self.known

    def ask(self) -> None:
        """Ask the governing `when`; the response is known."""
        self.wanted = False
        if self.when is not None:
            self.wanted = is_wanted(self.recruiter, self.when, self.response())


current: ContextVar[Deferral | None] = ContextVar("workstealing_deferral", default=None)
"""The deferral of the request that this context serves, or None."""


def is_deferring() -> bool:
    """Say whether an integration further out defers the current request's enlist."""
    outer = current.get()
    return outer is not None and not outer.closed


def _never(_: object) -> bool:
    return False


def defer(recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
    """Defer an enlist to the end of the current request, if an integration is at work.

    Arguments as of Deferral.offer(). Returns: False without a request; then the caller enlists at
    once.
    """
    deferral = current.get()
    return deferral is not None and deferral.offer(recruiter, when, by)


def withdraw(by: object) -> None:
    """Take a deferred enlist back; see Deferral.withdraw()."""
    deferral = current.get()
    if deferral is not None:
        deferral.withdraw(by)
