"""Putting an enlist off until the response has gone out.

A web integration sets `current` for the length of one request. A handler decorated with
`Recruiter.enlists` finds it there and hands its enlist over instead of making the client wait; the
integration closes the deferral after the last byte. Code without an integration finds None.

Nearly every request is dismissed. So an integration that holds a whole response draws at once, by
`settle`, and puts nothing around the response unless this request is recruited.

This module knows no framework and no protocol: what a response is, and when it has gone out, is
the integration's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting.faults import FaultLog, HostTimeouts

# `when` receives the integration's own response object (flask.Response, say); this module cannot
# name that type, and its answer is only asked for its truth.
When = Callable[..., object]


class Enlister(Protocol):
    """What can be enlisted: a Recruiter.

    Where it has a method `draw`, as a Recruiter has, that returns None for a dismissed caller or a
    `Recruit`, whose slice can wait until the response has gone out.
    """

    def enlist(self) -> object:
        """Offer this process's spare moment."""
        ...


class Recruit(Protocol):
    """Who has won a draw and has not served yet."""

    def serve(self) -> object:
        """Do the slice, here and now."""
        ...

    def serve_on_loop(self) -> object:
        """Do the slice in a thread of the running event loop's executor; nobody waits for it."""
        ...

    def skip(self) -> object:
        """Count this recruit as SKIPPED: there is no moment to serve in."""
        ...


when_faults = FaultLog(SYSTEM_CLOCK)
if hasattr(os, "register_at_fork"):
    # A forked child must not wait for a lock whose holder stayed behind in its parent.
    os.register_at_fork(after_in_child=when_faults.after_fork)


def is_host_timeout(recruiter: Enlister, error: BaseException) -> bool:
    """Say whether an error that a user's function raised must reach the host; for integrations."""
    # An enlister of the user's own has no classes registered.
    asked = getattr(recruiter, "is_host_timeout", HostTimeouts().include)
    return bool(asked(error))


class Deferral:
    """One request's enlist, put off until its response has gone out; it happens at most once.

    Arguments: recruiter_default and when_default, the integration's own offer, which stands unless
    a decorated handler makes one; when_default None means every response. One deferral belongs to
    one request and is not shared between threads.
    """

    # Defaults on the class: a request makes one of these, and sets what differs.
    _asked = False  # whether `when` was asked,
    _wanted = False  # and its answer
    _response: object = None
    _recruit: Recruit | None = None  # by `settle`
    _offers: dict[object, tuple[Enlister, When | None]] | None = None
    responded = False
    """Whether the response is known."""
    closed = False
    """Whether the request is over."""

    def __init__(self, recruiter_default: Enlister, when_default: When | None = None) -> None:
        self._recruiter = recruiter_default
        self.when = when_default

    def offer(self, recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
        """Let this recruiter and this `when` govern the request; the last offer wins.

        Arguments: recruiter; when, which receives the response object and says whether to enlist
        (None: always); by, a hashable that `withdraw` will name. Returns: False when the request is
        over already, for example in a thread that copied its context; then nothing was put off and
        the caller enlists at once.
        """
        if self.closed:
            return False
        if self._recruit is None:
            if self._offers is None:
                self._offers = {}
            # Again at the end, where it was there before: it is the last one now.
            self._offers.pop(by, None)
            self._offers[by] = self._recruiter, self.when = recruiter, when
            self._asked = False
        return True

    def withdraw(self, by: object) -> None:
        """Take an offer back, because its function has raised: the last of the others governs.

        Without another one nobody is enlisted, whatever the integration offers by itself.
        Arguments: by, as it was given to offer().
        """
        if self._recruit is not None or self._offers is None:
            return
        self._offers.pop(by, None)
        others = list(self._offers.values())
        self._recruiter, self.when = others[-1] if others else (self._recruiter, _never)
        self._asked = False

    def respond(self, response: object) -> None:
        """Say what the response is, and ask the governing `when` about it.

        It is asked now, while the framework's request is still at hand. A later respond() replaces
        an earlier one (an error page instead of the page); a later offer() is asked at close().
        """
        if self.closed:
            return
        self._response = response
        self.responded = True
        if self.when is not None:
            self.ask()

    def settle(self) -> bool:
        """Draw for this request now, whose response is known; nothing of it is left to run.

        Returns: True if a slice follows at close(). Otherwise the request is over for this package,
        and whoever holds its response may let go of it. A dismissed request costs no more than a
        dismissed enlist.
        """
        if self.responded and (self.when is None or self._is_wanted()):
            try:
                draw = self._recruiter.draw  # type: ignore[attr-defined]
            except AttributeError:
                # An enlister of the user's own, which draws when it is asked.
                return True
            recruit = draw()
            if recruit is not None:
                self._recruit = recruit
                return True
        self.closed = True
        return False

    def close(self) -> None:
        """Enlist if the response asked for it; to be called when the last byte has gone out.

        The first call counts, all others do nothing. Without a respond() before it nobody is
        enlisted: the server is still to answer with an error of its own.
        """
        if self.closed:
            return
        recruit = self._recruit
        wanted = recruit is not None or self._is_wanted()
        # Before the enlist, so that what runs inside the slice finds no request to defer to.
        self.closed = True
        if recruit is not None:
            self._serve(recruit)
        elif wanted:
            self._enlist(self._recruiter)

    def drop(self) -> None:
        """End the request without an enlist, because its client would have to wait for it.

        Whom `settle` has recruited is SKIPPED.
        """
        if not self.closed:
            self.closed = True
            if self._recruit is not None:
                self._recruit.skip()

    def _enlist(self, recruiter: Enlister) -> None:
        """Enlist here and now; an integration that may not block its caller has its own way."""
        recruiter.enlist()

    def _serve(self, recruit: Recruit) -> None:
        """Do a recruit's slice here and now; see `_enlist`."""
        recruit.serve()

    def _is_wanted(self) -> bool:
        if not self.responded:
            return False
        if self.when is None:
            return True
        if not self._asked:
            self.ask()
        return self._wanted

    def response(self) -> object:
        """Return what a `when` is asked about."""
        return self._response

    def ask(self) -> None:
        """Ask the governing `when`, once the response is known."""
        self._asked = True
        self._wanted = False
        try:
            self._wanted = bool(self.when(self.response()))  # type: ignore[misc]
        except Exception as error:
            if is_host_timeout(self._recruiter, error):
                raise
            when_faults.report("the `when` of an enlist", error)


current: ContextVar[Deferral | None] = ContextVar("workstealing_deferral", default=None)
"""The deferral of the request that this context serves, or None."""


def is_deferring() -> bool:
    """Say whether an integration further out has put the current request's enlist off."""
    outer = current.get()
    return outer is not None and not outer.closed


def _never(_: object) -> bool:
    return False


def defer(recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
    """Put an enlist off to the end of the current request, if an integration is at work.

    Arguments: as of Deferral.offer(). Returns: False when there is no request to put it off to, and
    the caller is to enlist at once.
    """
    deferral = current.get()
    return deferral is not None and deferral.offer(recruiter, when, by)


def withdraw(by: object) -> None:
    """Take back what `defer` has put off; see Deferral.withdraw()."""
    deferral = current.get()
    if deferral is not None:
        deferral.withdraw(by)
