"""How often a token may be guessed: by one address, and by all of them together.

A trial is a login, a token in a header, and a session's cookie that was not seen here before, since
its key comes from the token. Each takes from two allowances, which fill up again by time, and gets
its part back if the token was right. Where all together have used theirs up,
an address of which no wrong token is known still has one trial, so that no stranger locks the admin
out.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.metrics.minutes import logins_key
from workstealing.store.budget import Budget
from workstealing.store.twin import twin_of

TRIES = 10
"""How many wrong tokens one address may give at once."""

EVERY_SECONDS = 30.0
"""After how long it may give one more."""

TRIES_OF_ALL = 60
"""How many wrong tokens all addresses may give within a minute."""

MINUTE_SECONDS = 60
MOST_ADDRESSES = 4096
"""Of how many addresses the wrong tokens are remembered; those of longest ago are forgotten."""

MOST_SESSIONS = 4096
"""Of how many sessions a process knows that they are right."""

SHARED_SECONDS = 0.25
"""How long Redis may take to count a wrong token for the whole fleet."""

_IPV6_NETWORK = 64


class Throttle:
    """Counts wrong tokens.

    Arguments: share: counts a wrong token for the whole fleet and returns how many there were in
    the running minute and how many seconds of it are left; None: this process counts alone. An
    error of it is passed over: a dead Redis neither locks out nor lets in. clock.
    """

    def __init__(
        self, share: Callable[[], tuple[int, float]] | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._share, self._clock = share, clock
        self._lock = threading.Lock()
        # By address: until when what it has used of its allowance is not yet filled up again.
        self._used_until: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, None] = OrderedDict()
        self._all_used_until = float("-inf")
        self._fleet_closed_until = float("-inf")

    def enter(self, address: str | None) -> float:
        """Take a trial; return 0.0, or how many seconds are to be waited for one.

        Arguments: address: the client's, as the server sees it. After a trial comes `right` or
        `wrong`. No round trip.
        """
        key = network(address)
        with self._lock:
            now = self._clock.monotonic()
            own = max(now, self._used_until.get(key, now))
            wait = own + EVERY_SECONDS - now - TRIES * EVERY_SECONDS
            if wait > 0:
                return wait
            wait = self._wait_of_all(now)
            if wait > 0 and own > now:
                return wait
            self._note(key, own + EVERY_SECONDS, now)
            each = MINUTE_SECONDS / TRIES_OF_ALL
            # What strangers try beyond the allowance of all does not lengthen the wait without end.
            used = max(now, self._all_used_until) + each
            self._all_used_until = min(used, now + MINUTE_SECONDS + each)
        return 0.0

    def right(self, address: str | None) -> None:
        """Give a trial back: the token was right. No round trip."""
        key = network(address)
        with self._lock:
            now = self._clock.monotonic()
            self._note(key, self._used_until.get(key, now) - EVERY_SECONDS, now)
            self._all_used_until -= MINUTE_SECONDS / TRIES_OF_ALL

    def wrong(self) -> None:
        """Note that the token of a trial was wrong. One round trip, where the fleet counts too."""
        if self._share is None:
            return
        try:
            count, left = self._share()
        except Exception:  # noqa: BLE001 - whatever Redis has, this process counts on
            return
        if count >= TRIES_OF_ALL:
            with self._lock:
                self._fleet_closed_until = self._clock.monotonic() + min(left, MINUTE_SECONDS)

    def remember(self, session: str) -> None:
        """Know a session from now on: it is no guess, however often its address guesses."""
        digest = hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            self._sessions[digest] = None
            self._sessions.move_to_end(digest)
            while len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)

    def knows(self, session: str) -> bool:
        """Say whether a session is known here."""
        digest = hashlib.sha256(session.encode("utf-8", "surrogatepass")).digest()
        return digest in self._sessions

    def addresses(self) -> int:
        """Return of how many addresses wrong tokens are remembered."""
        return len(self._used_until)

    def _wait_of_all(self, now: float) -> float:
        each = MINUTE_SECONDS / TRIES_OF_ALL
        own = max(now, self._all_used_until) + each - now - MINUTE_SECONDS
        return max(own, self._fleet_closed_until - now)

    def _note(self, key: str, until: float, now: float) -> None:
        self._used_until.pop(key, None)
        if until > now:
            self._used_until[key] = until
        while len(self._used_until) > MOST_ADDRESSES:
            self._used_until.popitem(last=False)


def network(address: str | None) -> str:
    """Return what stands for a client: its IPv4 address, or the /64 network of its IPv6 one."""
    try:
        known = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return (address or "")[:64]
    mapped = getattr(known, "ipv4_mapped", None)
    if known.version == 4 or mapped is not None:
        return str(mapped or known)
    return str(ipaddress.ip_network((known, _IPV6_NETWORK), strict=False))


def counted_by_fleet(client: Any, name: str) -> Callable[[], tuple[int, float]]:
    """Return what counts a wrong token in Redis, for the dashboards of one ledger.

    Arguments: client: of redis-py; name: the ledger's. A count costs one round trip of three
    commands, on a connection that makes one attempt and waits for at most `SHARED_SECONDS`.
    """
    key = logins_key(name)

    def count() -> tuple[int, float]:
        commands = [("SET", key, 0, "EX", MINUTE_SECONDS, "NX"), ("INCR", key), ("PTTL", key)]
        budget = Budget(SHARED_SECONDS, SHARED_SECONDS)
        for reply in (replies := twin_of(client).call_keys((key,), commands, budget)):
            if isinstance(reply, Exception):
                raise reply
        return int(replies[1]), max(0, int(replies[2])) / 1000

    return count
