"""Putting an enlist off until the response has gone out.

A web integration sets `current` for the length of one request. A handler decorated with
`Recruiter.enlists` finds it there and hands its enlist over instead of making the client wait; the
integration closes the deferral after the last byte. Code without an integration finds None.

This module knows no framework and no protocol: what a response is, and when it has gone out, is
the integration's business.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

from workstealing.clock import SYSTEM_CLOCK
from workstealing.recruiting.faultlog import FaultLog
from workstealing.recruiting.hosttimeouts import HostTimeouts

# `when` receives the integration's own response object (flask.Response, say); this module cannot
# name that type, and its answer is only asked for its truth.
When = Callable[..., object]


class Enlister(Protocol):
    """What can be enlisted: a Recruiter."""

    def enlist(self) -> object:
        """Offer this process's spare moment."""
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

    __slots__ = (
        "_decided",
        "_decision",
        "_offers",
        "_recruiter",
        "_responded",
        "_response",
        "_when",
        "closed",
    )

    def __init__(self, recruiter_default: Enlister, when_default: When | None = None) -> None:
        self._recruiter = recruiter_default
        self._when = when_default
        self._offers: dict[object, tuple[Enlister, When | None]] = {}
        self._response: object = None
        self._responded = False
        self._decided = False
        self._decision = False
        self.closed = False

    def offer(self, recruiter: Enlister, when: When | None = None, by: object = None) -> bool:
        """Let this recruiter and this `when` govern the request; the last offer wins.

        Arguments: recruiter; when, which receives the response object and says whether to enlist
        (None: always); by, a hashable that `withdraw` will name. Returns: False when the request is
        over already, for example in a thread that copied its context; then nothing was put off and
        the caller enlists at once.
        """
        if self.closed:
            return False
        # Again at the end, where it was there before: it is the last one now.
        self._offers.pop(by, None)
        self._offers[by] = self._recruiter, self._when = recruiter, when
        self._decided = False
        return True

    def withdraw(self, by: object) -> None:
        """Take an offer back, because its function has raised: the last of the others governs.

        Without another one nobody is enlisted, whatever the integration offers by itself.
        Arguments: by, as it was given to offer().
        """
        self._offers.pop(by, None)
        others = list(self._offers.values())
        self._recruiter, self._when = others[-1] if others else (self._recruiter, _never)
        self._decided = False

    def respond(self, response: object) -> None:
        """Say what the response is, and ask the governing `when` about it.

        It is asked now, while the framework's request is still at hand. A later respond() replaces
        an earlier one (an error page instead of the page); a later offer() is asked at close().
        """
        if self.closed:
            return
        self._response = response
        self._responded = True
        self._decide()

    def close(self) -> None:
        """Enlist if the response asked for it; to be called when the last byte has gone out.

        The first call counts, all others do nothing. Without a respond() before it nobody is
        enlisted: the server is still to answer with an error of its own.
        """
        if self.closed:
            return
        if self._responded and not self._decided:
            self._decide()
        # Before the enlist, so that what runs inside the slice finds no request to defer to.
        self.closed = True
        if self._decision:
            self._enlist(self._recruiter)

    @property
    def responded(self) -> bool:
        """Whether respond() was called."""
        return self._responded

    def drop(self) -> None:
        """End the request without an enlist, because its client would have to wait for it."""
        self.closed = True

    def _enlist(self, recruiter: Enlister) -> None:
        """Enlist here and now; an integration that may not block its caller has its own way."""
        recruiter.enlist()

    def _decide(self) -> None:
        self._decided = True
        self._decision = False
        if self._when is None:
            self._decision = True
            return
        try:
            self._decision = bool(self._when(self._response))
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
