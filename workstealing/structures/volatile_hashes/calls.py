"""A host's calls to the server of its cache, which a breaker holds back after a fault.

The breaker is the one that the jobs on that server have, too: see `recruiting.breakers`. A call
that may be left out asks `may_ask` first; one that may not, such as an invalidation, only tells of
its success or fault. No I/O.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from workstealing.errors import is_connection_fault, is_pool_full
from workstealing.recruiting.breakers import SERVER_BREAKERS, Breaker
from workstealing.recruiting.faults import HostTimeouts

# redis-py's ConnectionErrors that are replies: the server was reached, and said no.
_REPLIES = frozenset({"AuthenticationError", "AuthorizationError", "BusyLoadingError"})
_FEW_CONNECTIONS = "max number of clients reached"


def breaker_of(hashes: Any, key: Any) -> Breaker:
    """Return the breaker of the server, or of the cluster's or fleet's node, that has a hash.

    No round trip.
    """
    # On a fleet, the hash's own node.
    node_of = getattr(hashes, "_node_of", None)
    breaker: Breaker = (hashes if node_of is None else node_of((key,))).job_client.breaker_of(key)
    return breaker


def only_breaker(hashes: Any) -> Breaker | None:
    """Return the breaker of all hashes; None: it depends on the hash, on a cluster or a fleet."""
    is_divided = hasattr(hashes, "_node_of") or hashes.job_client.is_cluster
    return None if is_divided else hashes.job_client.breaker_of("")


def may_ask(breaker: Breaker) -> bool:
    """Say whether a call may ask the server now; after a fault that is so for one at a time."""
    return breaker.outage is None or breaker.admits(SERVER_BREAKERS.clock.monotonic())


class HostCall:
    """A call to a server, whose end its breaker learns: `with HostCall(breaker, timeouts): ...`.

    A fault opens the breaker, and a reply closes it, an error reply too. A full pool says nothing
    about the server; neither do errors that are no client's. Everything passes.

    Arguments:
        timeouts: the host's own, which say nothing about the server either.
    """

    __slots__ = ("_breaker", "_seen", "_timeouts")

    def __init__(self, breaker: Breaker, timeouts: HostTimeouts) -> None:
        self._breaker, self._timeouts = breaker, timeouts
        self._seen = breaker.outage

    def __enter__(self) -> None:
        """Begin; the breaker's state of that moment is known already."""

    def __exit__(
        self, kind: object, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell the breaker."""
        if error is None:
            # A usual call ends here.
            if self._breaker.outage is not None:
                self._breaker.recover()
        elif isinstance(error, Exception):
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if self._timeouts.include(error) or is_pool_full(error):
            return
        names = {base.__name__ for base in type(error).__mro__}
        replied = "ResponseError" in names or not names.isdisjoint(_REPLIES)
        if replied or str(error) == _FEW_CONNECTIONS:
            self._breaker.recover()
        elif is_connection_fault(error):
            self._breaker.fail(SERVER_BREAKERS.clock.monotonic(), self._seen)
