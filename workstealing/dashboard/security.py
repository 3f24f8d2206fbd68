"""Who may see the dashboard, and who may steer: tokens, sessions, and what every answer says.

Three states, and nothing in between:

- without a token only a client on this machine is answered, and it may only look;
- with a token everybody has to log in, wherever they come from: behind a proxy on the same machine
  every client would seem to be on this machine;
- the admin token steers, the view token looks.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workstealing.errors import ConfigurationError, MissingExtraError

try:
    from itsdangerous import BadData, URLSafeTimedSerializer
except ModuleNotFoundError as error:
    if error.name != "itsdangerous":
        raise
    # It comes with Flask.
    raise MissingExtraError("dashboard", "flask") from error

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
"""What every answer of the dashboard carries."""

# By any of these a proxy says that it stands between us and the client.
_PROXY_HEADERS = (
    *("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip"),
    *("X-Forwarded", "X-Forwarded-Port", "X-Forwarded-Prefix", "X-Forwarded-Scheme"),
    *("X-Forwarded-Server", "X-Forwarded-Ssl", "X-Original-Forwarded-For", "X-Original-Host"),
    *("Via", "Cf-Connecting-Ip", "True-Client-Ip", "X-Client-Ip", "Client-Ip", "Fly-Client-Ip"),
    *("X-Cluster-Client-Ip", "X-Envoy-External-Address", "Cf-Ray"),
)


class Headers(Protocol):
    """The headers of a request, whatever their case."""

    def get(self, key: str, /) -> Any:
        """Return a header's text, or None."""
        ...

    def __contains__(self, key: str, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks.

    Fields: role: ADMIN or VIEWER; csrf: what a form of this session must carry; by_header: whether
    the request carries the token itself, which no other site can make a browser send.
    """

    role: str
    csrf: str = ""
    by_header: bool = False

    @property
    def may_steer(self) -> bool:
        """Whether this visitor may change anything."""
        return self.role == ADMIN


class Guard:
    """Knows the tokens, and tells who asks.

    Arguments: token: the admin's; view_token: of those who may only look; None: there is none.
    Errors: ConfigurationError for a token that is too short, or that no header can carry as it is,
    for equal ones, and for a view token alone.
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
        # Every process of a fleet reads the same cookies, without a setting of its own; whoever
        # changes a token ends its sessions. Each role has a key of its own: with one made of both
        # tokens, who holds the view token could try guesses of the admin's against a cookie.
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
        """Return the role that a token gives, or None; in the same time for any wrong token."""
        said = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for role, known in self._tokens.items():
            digest = hashlib.sha256((known or "").encode()).digest()
            if hmac.compare_digest(said, digest) and known is not None:
                found = role
        return found

    def is_trial(
        self, headers: Headers, cookie: str | None, is_known: Callable[[str], bool]
    ) -> bool:
        """Say whether a request may be a guess of a token.

        Arguments: headers; cookie: the session's; is_known: says whether a session was right here.
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
        headers: Headers,
        cookie: str | None,
    ) -> Visitor | None:
        """Tell who asks, or None where nobody may be answered.

        Arguments: address: the client's as the server sees it, never as a header says; host: the
        Host header; headers; cookie: the session's.
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
        """Say whether a POST of an admin is the admin's own will, not that of another site.

        Arguments: visitor; csrf: what the form carries; fetch_site: the browser's Sec-Fetch-Site.
        """
        if not is_own_site(fetch_site):
            return False
        if visitor.by_header:
            return True
        given = csrf.encode("utf-8", "surrogatepass")
        # Who has no session has no token, and an empty one is none.
        return bool(visitor.csrf) and hmac.compare_digest(given, visitor.csrf.encode())

    def _csrf(self, role: str, nonce: str) -> str:
        return hmac.new(self._keys[role], b"csrf\0" + nonce.encode(), hashlib.sha256).hexdigest()


def cookie_name(host: str, path: str, ledger: str) -> str:
    """Return the name of a dashboard's cookie, which no other dashboard on this host has.

    Cookies know no ports, and a path below another one gets both cookies. Arguments: host: the Host
    header, with the port; path: where the dashboard is; ledger: its name.
    """
    digest = hashlib.sha256("\0".join((host, path, ledger)).encode("utf-8", "surrogatepass"))
    return f"workstealing_session_{digest.hexdigest()[:12]}"


def _bearer(headers: Headers) -> str | None:
    kind, _, given = (headers.get("Authorization") or "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else None


def is_own_site(fetch_site: str | None) -> bool:
    """Say whether a browser sent this from our own page; other clients say nothing."""
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


def is_local(address: str | None, host: str, headers: Headers) -> bool:
    """Say whether a client is on this machine, as far as anybody can tell.

    A header of a proxy makes it a no, whatever it says. So does a Host that is not this machine's:
    a page of another site may give its own name our address (DNS rebinding).
    """
    if not address or not is_loopback(address):
        return False
    if any(name in headers for name in _PROXY_HEADERS):
        return False
    name = host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)
