"""Why a ledger has no new figures: its server is full, or refuses the reports of a user."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from redis.exceptions import NoPermissionError

from workstealing.dashboard.fleet_state import DENIED, FULL, Why, then
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import ledger_names, text
from workstealing.recruiting import Recruiter
from workstealing.recruiting.breakers import server_name
from workstealing.recruiting.health import roughly
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
        # The errors of questions that the user may not ask: a refused one stands in the server's
        # log of refusals, so it is asked once.
        self._denied: dict[str, str] = {}

    def __call__(self) -> Why:
        """Return the reason, and the questions without an answer. Two round trips, no write.

        A server that is full answers reads as before, and so does one that refuses the reports of
        another user.
        """
        unasked: dict[str, str] = {}
        questions = {"INFO": self._fullness, "ACL LOG": self._denial}
        for question, ask in questions.items():
            try:
                known = None if question in self._denied else ask()
            except NoPermissionError as error:
                self._denied[question] = type(error).__name__
            except Exception as error:  # noqa: BLE001 - whatever a server says; it is told
                unasked[question] = type(error).__name__
            else:
                if known is not None:
                    return Why(known)
        unasked |= self._denied
        return Why(
            None, ", ".join(f"{each}: {unasked[each]}" for each in questions if each in unasked)
        )

    def _fullness(self) -> str | None:
        memory = self._client.info("memory")
        used, most = int(memory["used_memory"]), int(memory["maxmemory"])
        policy = text(memory["maxmemory_policy"])
        if most and used >= most and policy == "noeviction":
            return (
                f"the server{self._at()} is full ({used:,} of {most:,} bytes, {policy}) and refuses"
                f" reports: OutOfMemory{then(FULL)}"
            )
        return None

    def _denial(self) -> str | None:
        entries = map(_plain, self._client.acl_log())
        mine = [each for each in entries if _is_of(each, self._name)]
        if not mine:
            return None
        newest = min(mine, key=lambda each: float(each["age-seconds"]))
        host = newest["client-info"].get("addr", "").rpartition(":")[0]
        to = f", to {host}" if host else ""
        return (
            f"the server{self._at()} refuses keys of this ledger to the user {newest['username']},"
            f" last {roughly(float(newest['age-seconds']))} ago{to}{then(DENIED)}"
        )

    def _at(self) -> str:
        address = server_of_client(self._client)
        return "" if address is None else f" {address}"


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
