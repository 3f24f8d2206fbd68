"""Why a ledger has no new figures: its server is full, or this process's own reports fail."""

from __future__ import annotations

import contextlib
from typing import Any

from workstealing.dashboard.next_steps import FULL, then
from workstealing.metrics.ledger import Ledger
from workstealing.recruiting import Recruiter
from workstealing.recruiting.breakers import server_name
from workstealing.recruiting.health import roughly
from workstealing.store.fleet import one_server
from workstealing.store.twin import twin_of


def server_of_client(client: Any) -> str | None:
    """Return the address of a client's server, as breakers name it; None: it cannot be told."""
    with contextlib.suppress(Exception):
        return server_name(twin_of(one_server(client, "a ledger")).identity)
    return None


def refusal_of(client: Any) -> str | None:
    """Say why a server refuses reports, None: nothing is known. One round trip; nothing is written.

    Arguments: client: of the ledger's server. A server that is full answers reads as before.
    """
    with contextlib.suppress(Exception):
        memory = client.info("memory")
        used, most = int(memory["used_memory"]), int(memory["maxmemory"])
        policy = memory["maxmemory_policy"]
        policy = policy.decode() if isinstance(policy, bytes) else str(policy)
        address = server_of_client(client)
        at = "" if address is None else f" {address}"
        if most and used >= most and policy == "noeviction":
            return (
                f"the server{at} is full ({used:,} of {most:,} bytes, {policy}) and refuses"
                f" reports: OutOfMemory{then(FULL)}"
            )
    return None


def own_refusals(recruiter: Recruiter) -> list[str]:
    """Return a sentence for each ledger to which this process's own reports do not get through."""
    said = []
    for hook in recruiter.hooks():
        if isinstance(hook, Ledger) and (failing := hook.failing()) is not None:
            error, seconds = failing
            said.append(
                f"this process's reports to the ledger {hook.name!r} are refused: {error}, for"
                f" {roughly(seconds)}"
            )
    return said
