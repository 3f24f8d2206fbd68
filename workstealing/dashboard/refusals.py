"""Why a ledger has no new figures: its server is full, or refuses the reports of a user."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from workstealing.clock import roughly
from workstealing.dashboard.fleet_state import DENIED, FULL, then
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import ledger_names, text
from workstealing.recruiting import Recruiter
from workstealing.recruiting.breakers import server_name
from workstealing.store.fleet import one_server
from workstealing.store.job_client import job_client_of


def server_of_client(client: Any) -> str | None:
    """Return the address of a client's server, as breakers name it; None: it cannot be told."""
    with contextlib.suppress(Exception):
        return server_name(job_client_of(one_server(client, "a ledger")).identity)
    return None


class Refusals:
    """Says why a server refuses a ledger's reports, as often as it is asked.

    Arguments:
        client: of the ledger's server.
        name: of the ledger.
    """

    def __init__(self, client: Any, name: str = "default") -> None:
        self._client, self._name = client, name
        # A question that is refused stands in the server's log of refusals, so it is asked once.
        self._may_ask = True

    def __call__(self) -> str | None:
        """Return a sentence, None: nothing is known. Two round trips; nothing is written.

        A server that is full answers reads as before, and so does one that refuses the reports of
        another user.
        """
        return _fullness(self._client) or self._denial()

    def _denial(self) -> str | None:
        if not self._may_ask:
            return None
        try:
            entries = self._client.acl_log()
        except (NoPermissionError, ResponseError):
            # Not every server has it, and hardly any user may ask it.
            self._may_ask = False
            return None
        except Exception:  # noqa: BLE001 - the questions for the figures say what is wrong
            return None
        with contextlib.suppress(Exception):
            mine = [each for each in map(_plain, entries) if _is_of(each, self._name)]
            if mine:
                newest = min(mine, key=lambda each: float(each["age-seconds"]))
                address = server_of_client(self._client)
                at = "" if address is None else f" {address}"
                host = newest["client-info"].get("addr", "").rpartition(":")[0]
                to = f", to {host}" if host else ""
                return (
                    f"the server{at} refuses keys of this ledger to the user {newest['username']},"
                    f" last {roughly(float(newest['age-seconds']))} ago{to}{then(DENIED)}"
                )
        return None


_LATELY_SECONDS = 60.0


def _plain(entry: Mapping[Any, Any]) -> dict[str, Any]:
    """Return an entry of the log of refusals as text, and its client's facts by name."""
    said: dict[str, Any] = {}
    for name, value in entry.items():
        said[text(name)] = (
            {text(each): text(fact) for each, fact in value.items()}
            if isinstance(value, Mapping)
            else text(value)
        )
    return said


def _is_of(entry: Mapping[str, Any], name: str) -> bool:
    is_late = float(entry["age-seconds"]) > _LATELY_SECONDS
    return (
        not is_late
        and entry["reason"] == "key"
        and any(each in entry["object"] for each in ledger_names(name))
    )


def refusal_of(client: Any, name: str = "default") -> str | None:
    """Say why a server refuses a ledger's reports, None: nothing is known; see `Refusals`."""
    return Refusals(client, name)()


def _fullness(client: Any) -> str | None:
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
