"""Settings from the environment; each is read when it is needed, never at import."""

from __future__ import annotations

import os

from workstealing.errors import ConfigurationError

DISABLED_VARIABLE = "WORKSTEALING_DISABLED"
URL_VARIABLES = ("WORKSTEALING_REDIS_URL", "REDIS_URL")

_OFF = frozenset({"", "0", "false", "no", "off"})


def is_disabled() -> bool:
    """Say whether WORKSTEALING_DISABLED asks every enlist to be a dismissal."""
    return os.environ.get(DISABLED_VARIABLE, "").strip().lower() not in _OFF


def names_redis() -> bool:
    """Say whether the environment names a Redis."""
    return any(os.environ.get(variable, "").strip() for variable in URL_VARIABLES)


def redis_url() -> str:
    """Return the Redis URL that the environment names.

    Returns: the value of WORKSTEALING_REDIS_URL, else of REDIS_URL. Raises: ConfigurationError if
    neither is set, so a forgotten setting never writes into a throw-away server.
    """
    for variable in URL_VARIABLES:
        url = os.environ.get(variable, "").strip()
        if url:
            return url
    raise ConfigurationError(
        "no Redis URL was given: pass one to connect(), or set WORKSTEALING_REDIS_URL or REDIS_URL"
        ' ("embedded://" starts a private throw-away server)'
    )
