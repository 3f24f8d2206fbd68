"""Access to the dashboard: tokens, sessions, a limit to guessing, and every answer's headers.

There are three states:

- Without a token only a client on this machine is answered, and it may only look.
- With a token everybody has to log in, wherever they come from. Behind a proxy on the same machine
  every client would seem to be on this machine.
- The admin token allows steering, the view token allows looking.

Guesses of a token are limited. A trial is a login, a token in a header, or a session's cookie that
is new here, because the cookie's key comes from the token. Each trial takes a part of two
allowances, one of its address and one of all addresses. The allowances fill up again with time, and
a right token gets its part back. If the allowance of all is used up, an address without a known
wrong token still has one trial, so that no stranger locks the admin out.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workstealing.clock import SYSTEM_CLOCK, Clock
from workstealing.errors import ConfigurationError, MissingExtraError
from workstealing.metrics.minutes import logins_key
from workstealing.store.budget import Budget
from workstealing.store.job_client import job_client_of

try:
    from itsdangerous import BadData, URLSafeTimedSerializer
except ModuleNotFoundError as error:
    if error.name != "itsdangerous":
        raise
    # It comes with Flask.
    raise MissingExtraError("dashboard", "flask") from error

TRIES = 10
"""How many wrong tokens one address may give at once."""

EVERY_SECONDS = 30.0
"""After how many seconds an address may give one more."""

TRIES_OF_ALL = 60
"""How many wrong tokens all addresses together may give within a minute."""

MINUTE_SECONDS = 60
MOST_ADDRESSES = 4096
"""For how many addresses wrong tokens are remembered; the oldest are forgotten."""

MOST_SESSIONS = 4096
"""How many right sessions a process remembers."""

SHARED_SECONDS = 0.25
"""How long Redis may take to count a wrong token for the whole fleet."""

_IPV6_NETWORK = 64

ADMIN, VIEWER = "admin", "viewer"
SESSION_SECONDS = 12 * 3600
SHORTEST_TOKEN = 16

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer of the dashboard."""

# A proxy between us and the client says so by any of these.
_PROXY_HEADERS = (
    *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"),
    *("X-Forwarded", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Scheme"),
    *("X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host"),
    *("Via", "Cf-Connecting-Ip", "True-Client-Ip", "X-Client-Ip", "Client-Ip", "Fly-Client-Ip"),
    *("X-Cluster-Client-Ip", "X-Envoy-External-Address", "Cf-Ray"),
)


class Throttle:
    """Counts wrong tokens.

    Arguments:
        share: counts a wrong token for the whole fleet, and returns how many there were in the
            running minute and how many seconds of it are left; None lets this process count alone.

    An error of `share` is ignored: a dead Redis neither locks out nor lets in.
    """

    def __init__(
        self, share: Callable[[], tuple[int, float]] | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._share, self._clock = share, clock
        self._lock = threading.Lock()
        # By address: the time at which its allowance is full again.
        self._used_until: OrderedDict[str, float] = OrderedDict()
        self._sessions: OrderedDict[bytes, None] = OrderedDict()
        self._all_used_until = float("-inf")
        self._fleet_closed_until = float("-inf")

    def enter(self, address: str | None) -> float:
        """Take a trial; return 0.0, or for how many seconds the client must wait for one.

        Arguments:
            address: the client's, as the server sees it.

        After a trial comes `right` or `wrong`. No round trip.
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
            # Strangers' trials beyond the allowance of all do not lengthen the wait without end.
            used = max(now, self._all_used_until) + each
            self._all_used_until = min(used, now + MINUTE_SECONDS + each)
        return 0.0

    def right(self, address: str | None) -> None:
        """Give a trial back, because the token was right. No round trip."""
        key = network(address)
        with self._lock:
            now = self._clock.monotonic()
            self._note(key, self._used_until.get(key, now) - EVERY_SECONDS, now)
            self._all_used_until -= MINUTE_SECONDS / TRIES_OF_ALL

    def wrong(self) -> None:
        """Note that a trial's token was wrong. One round trip if the fleet counts, too."""
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
        """Remember a right session: it is no guess, however often its address guesses."""
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
        """Return for how many addresses wrong tokens are remembered."""
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
    """Return the name of a client: its IPv4 address, or the /64 network of its IPv6 address."""
    try:
        known = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return (address or "")[:64]
    mapped = getattr(known, "ipv4_mapped", None)
    if known.version == 4 or mapped is not None:
        return str(mapped or known)
    return str(ipaddress.ip_network((known, _IPV6_NETWORK), strict=False))


def counted_by_fleet(client: Any, name: str) -> Callable[[], tuple[int, float]]:
    """Return a function that counts wrong tokens in Redis, for the dashboards of one ledger.

    Arguments:
        client: of redis-py.
        name: the ledger's.

    A count costs one round trip of three commands, on a connection that makes one attempt and waits
    for at most `SHARED_SECONDS`.
    """
    key = logins_key(name)

    def count() -> tuple[int, float]:
        commands = [("SET", key, 0, "EX", MINUTE_SECONDS, "NX"), ("INCR", key), ("PTTL", key)]
        budget = Budget(SHARED_SECONDS, SHARED_SECONDS)
        for reply in (replies := job_client_of(client).call_keys((key,), commands, budget)):
            if isinstance(reply, Exception):
                raise reply
        return int(replies[1]), max(0, int(replies[2])) / 1000

    return count


class RequestHeaders(Protocol):
    """The headers of a request; upper and lower case are the same."""

    def get(self, key: str, /) -> Any:
        """Return a header's text, or None."""
        ...

    def __contains__(self, key: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Visitor:
    """A visitor who may look.

    Fields: role: ADMIN or VIEWER; csrf: the text that a form of this session must carry; by_header:
    whether the request carries the token itself, which no other site can make a browser send.
    """

    role: str
    csrf: str = ""
    by_header: bool = False

    @property
    def may_steer(self) -> bool:
        """Whether this visitor may change anything."""
        return self.role == ADMIN


class Guard:
    """Holds the tokens, and recognises visitors by them.

    Arguments:
        token: the admin's.
        view_token: allows looking only; None means that there is none.

    Raises: ConfigurationError for a token that is too short or that no header can carry as it is,
    for two equal tokens, and for a view token without an admin token.
    """

    def __init__(self, token: str | None, view_token: str | None = None) -> None:
        if view_token is not None and token is None:
            raise ConfigurationError("a view_token needs a token beside it, the admin's")
        for name, value in (("token", token), ("view_token", view_token)):
            if value is not None and (not isinstance(value, str) or len(value) < SHORTEST_TOKEN):
                raise ConfigurationError(
                    f"the dashboard's {name} is too short: give at least {SHORTEST_TOKEN}"
                    " characters, such as those of `python -c 'import secrets;"
                    " print(secrets.token_urlsafe())'`"
                )
            if value is not None and not (value.isascii() and value.isprintable()):
                raise ConfigurationError(
                    f"the dashboard's {name} has characters that no header carries: give letters,"
                    " digits and signs of ASCII"
                )
            if value is not None and value != value.strip():
                raise ConfigurationError(
                    f"the dashboard's {name} begins or ends with a space: remove it"
                )
        if token is not None and token == view_token:
            raise ConfigurationError("the view_token is the admin's token: give another one")
        self._tokens = {ADMIN: token, VIEWER: view_token}
        # Every process of a fleet reads the same cookies without a setting of its own, and a
        # changed token ends its sessions. Each role has a key of its own: from a key made of both
        # tokens, a holder of the view token could try guesses of the admin's token against a
        # cookie.
        self._keys = {
            role: hashlib.sha256(
                f"workstealing dashboard\0{role}\0{known or secrets.token_hex()}".encode()
            ).digest()
            for role, known in self._tokens.items()
        }
        self._sessions = {
            role: URLSafeTimedSerializer(
                key,
                salt=f"workstealing dashboard session of {role}",
                signer_kwargs={"digest_method": hashlib.sha256, "key_derivation": "hmac"},
            )
            for role, key in self._keys.items()
        }

    @property
    def wants_login(self) -> bool:
        """Whether there is a token, so that everybody has to log in."""
        return self._tokens[ADMIN] is not None

    def role_of(self, token: str) -> str | None:
        """Return the role that a token gives, or None; every wrong token takes the same time."""
        said = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for role, known in self._tokens.items():
            digest = hashlib.sha256((known or "").encode()).digest()
            if hmac.compare_digest(said, digest) and known is not None:
                found = role
        return found

    def is_trial(
        self, headers: RequestHeaders, cookie: str | None, is_known: Callable[[str], bool]
    ) -> bool:
        """Say whether a request may be a guess of a token.

        Arguments:
            cookie: the session's.
            is_known: says whether a session was right here.
        """
        if not self.wants_login:
            return False
        return _bearer(headers) is not None or bool(cookie and not is_known(cookie))

    def new_session(self, role: str) -> str:
        """Return the value of the cookie of a new session."""
        nonce = secrets.token_urlsafe(18)
        return f"{role}.{self._sessions[role].dumps({'nonce': nonce})}"

    def visitor(
        self,
        address: str | None,
        host: str,
        headers: RequestHeaders,
        cookie: str | None,
    ) -> Visitor | None:
        """Return the visitor who asks, or None if nobody may be answered.

        Arguments:
            address: the client's as the server sees it, never from a header.
            host: the Host header.
            cookie: the session's.
        """
        if not self.wants_login:
            return Visitor(VIEWER) if is_local(address, host, headers) else None
        given = _bearer(headers)
        if given is not None:
            role = self.role_of(given)
            return None if role is None else Visitor(role, by_header=True)
        if not cookie:
            return None
        role, _, signed = cookie.partition(".")
        if not self._tokens.get(role):
            return None
        try:
            nonce = self._sessions[role].loads(signed, max_age=SESSION_SECONDS)["nonce"]
        except (BadData, KeyError, TypeError):
            return None
        return Visitor(role, self._csrf(role, nonce))

    def allows_change(self, visitor: Visitor, csrf: str, fetch_site: str | None) -> bool:
        """Say whether an admin's POST is the admin's own will, not that of another site.

        Arguments:
            csrf: the form's text.
            fetch_site: the browser's Sec-Fetch-Site.
        """
        if not is_own_site(fetch_site):
            return False
        if visitor.by_header:
            return True
        given = csrf.encode("utf-8", "surrogatepass")
        # Without a session there is no text, and an empty one does not count.
        return bool(visitor.csrf) and hmac.compare_digest(given, visitor.csrf.encode())

    def _csrf(self, role: str, nonce: str) -> str:
        return hmac.new(self._keys[role], b"csrf\0" + nonce.encode(), hashlib.sha256).hexdigest()


def cookie_name(host: str, path: str, ledger: str) -> str:
    """Return the name of a dashboard's cookie, which no other dashboard on this host has.

    Cookies know no ports, and a path below another one gets the cookies of both.

    Arguments:
        host: the Host header, with the port.
        path: the dashboard's.
        ledger: its name.
    """
    digest = hashlib.sha256("\0".join((host, path, ledger)).encode("utf-8", "surrogatepass"))
    return f"workstealing_session_{digest.hexdigest()[:12]}"


def _bearer(headers: RequestHeaders) -> str | None:
    kind, _, given = (headers.get("Authorization") or "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def is_own_site(fetch_site: str | None) -> bool:
    """Say whether a browser sent this from our own page; other clients send no such header."""
    return fetch_site is None or fetch_site in {"same-origin", "none"}


def is_loopback(host: str) -> bool:
    """Say whether a name or an address means this machine alone."""
    bare = host.strip().strip("[]").lower()
    if bare == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_local(address: str | None, host: str, headers: RequestHeaders) -> bool:
    """Say whether a client is certainly on this machine.

    Any proxy's header makes the answer no. So does a Host that is not this machine's, because a
    page of another site may give its own name our address (DNS rebinding).
    """
    if not address or not is_loopback(address):
        return False
    if any(name in headers for name in _PROXY_HEADERS):
        return False
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)
