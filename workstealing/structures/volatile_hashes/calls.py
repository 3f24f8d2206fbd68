"""A host's calls to the server of its cache, which a breaker holds back after a fault.

The breaker is the one that the jobs on that server have, too: see `recruiting.breakers`. A call
that may be left out asks `may_ask` first; one that may not, such as an invalidation, only tells of
its success or fault. No I/O.
"""

from __future__ import annotations

from typing import Any

from workstealing.errors import is_connection_fault
from workstealing.recruiting.breakers import SERVER_BREAKERS, Breaker, Outage
from workstealing.recruiting.faults import HostTimeouts

# redis-py has no class of its own for the second, and an older one not for the first.
_FULL = ("Too many connections", "No connection available.")
# redis-py's ConnectionErrors that are replies: the server was reached, and said no.
_REPLIES = frozenset({"AuthenticationError", "AuthorizationError", "BusyLoadingError"})
_FEW_CONNECTIONS = "max number of clients reached"


def is_pool_full(error: BaseException) -> bool:
    """Say whether a client's pool had no connection left, which says nothing about the server."""
    name = type(error).__name__
    return name == "MaxConnectionsError" or (name == "ConnectionError" and str(error) in _FULL)


def breaker_of(hashes: Any, key: Any) -> Breaker:
    """Return the breaker of the server, or of the cluster's or fleet's node, that has a hash.

    No round trip.
    """
    # On a fleet, the hash's own node.
    node_of = getattr(hashes, "_node_of", None)
    breaker: Breaker = (hashes if node_of is None else node_of((key,))).twin.breaker_of(key)
    return breaker


def only_breaker(hashes: Any) -> Breaker | None:
    """Return the breaker of all hashes; None: it depends on the hash, on a cluster or a fleet."""
    is_divided = hasattr(hashes, "_node_of") or hashes.twin.is_cluster
    return None if is_divided else hashes.twin.breaker_of("")


def may_ask(breaker: Breaker) -> bool:
    """Say whether a call may ask the server now; after a fault that is so for one at a time."""
    return breaker.outage is None or breaker.admits(SERVER_BREAKERS.clock.monotonic())


def tell(breaker: Breaker, seen: Outage | None, error: Exception, timeouts: HostTimeouts) -> None:
    """Tell a breaker of a call's error: a fault opens it, and a reply closes it.

    Arguments: breaker; seen: its `outage` when the call began; error; timeouts: the host's own,
    which say nothing about the server. So do a full pool, and errors that are no client's.
    """
    if timeouts.include(error) or is_pool_full(error):
        return
    names = {base.__name__ for base in type(error).__mro__}
    replied = "ResponseError" in names or not names.isdisjoint(_REPLIES)
    if replied or str(error) == _FEW_CONNECTIONS:
        breaker.recover()
    elif is_connection_fault(error):
        breaker.fail(SERVER_BREAKERS.clock.monotonic(), seen)
