"""The recruiter or the database that a command is about, by its options or the application's own.

`--app package.module:recruiter` names the recruiter, and an address the database.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from workstealing.cli.output import note, printable
from workstealing.errors import ConfigurationError, MissingExtraError, WorkStealingError
from workstealing.recruiting import Job, Recruiter
from workstealing.store import connect
from workstealing.store.client import URL_VARIABLES, redis_url
from workstealing.store.job_client import AsyncClient, BlockingClient, is_async, is_cluster
from workstealing.store.keys import to_bytes

if TYPE_CHECKING:
    from workstealing.structures import CassandraStore


VARIABLE = "WORKSTEALING_APP"
_DEFAULT_ATTRIBUTE = "recruiter"
_OUR_CACHES = "workstealing."


def add_app_option(parser: argparse.ArgumentParser) -> None:
    """Add --app to a command's options."""
    parser.add_argument(
        "--app",
        metavar="MODULE:NAME",
        help="the recruiter, as package.module:recruiter, or a function that returns it; without"
        f" :NAME it is called {_DEFAULT_ATTRIBUTE} (default: {VARIABLE} in the environment); the"
        " command looks for modules in the current folder first",
    )


def named_app(name: str | None) -> str:
    """Return the name given by --app, else by the environment, else ""."""
    return os.environ.get(VARIABLE, "").strip() if name is None else name.strip()


def load_app(name: str | None) -> Recruiter:
    """Import a recruiter.

    Output of the application goes to stderr, because stdout belongs to the command.

    Arguments:
        name: "package.module:recruiter"; the second half may be dotted, and may be a function of no
            arguments that returns the recruiter.

    None stands for WORKSTEALING_APP in the environment. Raises: ConfigurationError for any fault of
    the name or the module.
    """
    name = named_app(name)
    if not name:
        raise ConfigurationError(
            f"no recruiter was named: give --app package.module:recruiter, or set {VARIABLE}"
        )
    with application_prints_to_stderr():
        recruiter = _recruiter(found_at(name, "--app", _DEFAULT_ATTRIBUTE), name)
        _open_django_caches()
        return recruiter


def found_at(name: str, option: str, attribute: str) -> Any:
    """Return an object of a module that an option names.

    Arguments:
        name: "package.module:name"; the second half may be dotted.
        option: for the error.
        attribute: the name where there is none.

    Raises: ConfigurationError.
    """
    module_name, colon, path = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or (colon and not path):
        raise ConfigurationError(
            f"{option} {name!r} is malformed: expected package.module:{attribute}"
        )
    found = _module(module_name)
    for part in (path or attribute).removesuffix("()").split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(
                f"{option} {name!r}: {getattr(found, '__name__', found)!s} has no {part!r}"
            ) from None
    return found


def _open_django_caches() -> None:
    """Open the caches of a Django project: Django does it at their first use, and ours have jobs.

    A command would otherwise say that no job is installed. Nothing is opened without settings, and
    a cache of another kind is left alone.
    """
    if "DJANGO_SETTINGS_MODULE" not in os.environ and "django.conf" not in sys.modules:
        return
    try:
        from django.conf import settings
        from django.core.cache import caches

        if not (settings.configured or "DJANGO_SETTINGS_MODULE" in os.environ):
            return
        for alias, options in settings.CACHES.items():
            if str(options.get("BACKEND", "")).startswith(_OUR_CACHES):
                caches[alias]
    except Exception as error:  # noqa: BLE001 - the recruiter's other jobs are known all the same
        note(f"Django's caches could not be opened, so their jobs are missing: {_said(error)}")


@contextlib.contextmanager
def application_prints_to_stderr() -> Iterator[None]:
    """Send output of the application's code to stderr: the command's answer stands on stdout."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        # As gunicorn and flask do.
        sys.path.insert(0, here)
    try:
        if find_spec(name.partition(".")[0]) is None:
            raise ConfigurationError(
                f"no module {name.partition('.')[0]!r} in {here} or elsewhere on Python's path"
            )
        return import_module(name)
    except WorkStealingError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"importing {name!r} failed: {_said(error)}") from error


def _recruiter(found: Any, name: str) -> Recruiter:
    if callable(found) and not isinstance(found, Recruiter):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"--app {name!r}: calling it failed: {_said(error)}"
            ) from error
    if not isinstance(found, Recruiter):
        raise ConfigurationError(
            f"--app {name!r} is of type {type(found).__name__}; expected a Recruiter, or a function"
            " that returns one"
        )
    return found


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


FAULTS = (redis.RedisError, RedisClusterException, OSError)
TIMEOUT_SECONDS = 2.0
_LOOKS_FOR_LEDGERS, _KEYS_A_LOOK = 100, 1_000
ENVIRONMENT = f"{' or '.join(URL_VARIABLES)} in the environment"


def add_url_option(parser: argparse._ActionsContainer, default: str = ENVIRONMENT) -> None:
    """Add --url to a command's options.

    Arguments:
        default: the Redis without --url.
    """
    parser.add_argument(
        "--url",
        metavar="URL",
        help=f"the Redis: redis://host:port/database and the like (default: {default})",
    )


def add_fleet_options(parser: argparse.ArgumentParser) -> None:
    """Add --app, --url and --ledger: they name the figures to show."""
    add_app_option(parser)
    add_url_option(parser, f"that of the recruiter's ledger or jobs, else {ENVIRONMENT}")
    parser.add_argument(
        "--ledger",
        metavar="NAME",
        help="the ledger's name (default: that of the recruiter's own ledger, else default)",
    )


def client_at(url: str | None) -> Any:
    """Return a client that waits a little and never retries, for a person who is waiting.

    Arguments:
        url: or None for the environment's.

    Raises: ConfigurationError if no Redis is named, or if it does not answer. One round trip.
    """
    patience = {
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    if url is None:
        try:
            url, where = redis_url(), f"the Redis of {' or '.join(URL_VARIABLES)}"
        except ConfigurationError:
            raise ConfigurationError(
                f"no Redis was named: give --url, or set {' or '.join(URL_VARIABLES)}"
            ) from None
    else:
        where = "the Redis at --url"
    client = None
    try:
        client = connect(url, **patience)
        client.ping()
    except FAULTS as error:
        at = "" if client is None else f" (asked at {address_of(client)})"
        raise ConfigurationError(f"{where} cannot be used: {said(error)}{at}") from error
    return client


@contextmanager
def cassandra_at(url: str) -> Iterator[CassandraStore]:
    """Lend a store on a table of Cassandra; its connections end with the context.

    Arguments:
        url: cassandra://user:password@host:port/keyspace/table; several hosts are separated by
            commas.

    Raises: ConfigurationError for another form, and for a Cassandra that cannot be used;
    MissingExtraError.
    """
    parts = urlsplit(url)
    keyspace, _, table = parts.path.strip("/").partition("/")
    user, _, hosts = parts.netloc.rpartition("@")
    # A host of IPv6 has colons of its own, and brackets around them.
    places = [re.fullmatch(r"(\[.+\]|[^:]+)(?::(\d+))?", each) for each in hosts.split(",")]
    if parts.scheme != "cassandra" or not keyspace or None in places:
        raise ConfigurationError(
            "--cassandra is not usable: give cassandra://host:port/keyspace, with user:password@"
            " before the host and /table at the end where they are needed"
        )
    try:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
    except ImportError as error:
        raise MissingExtraError("cassandra", "cassandra-driver") from error
    from workstealing.structures import CassandraStore

    found = [(each[1].strip("[]"), int(each[2] or 9042)) for each in places if each]
    name, _, password = map(unquote, user.partition(":"))
    profile = ExecutionProfile(
        TokenAwarePolicy(DCAwareRoundRobinPolicy()), request_timeout=5 * TIMEOUT_SECONDS
    )
    with ExitStack() as connections:
        try:
            cluster = Cluster(
                found,
                auth_provider=PlainTextAuthProvider(name, password) if user else None,
                execution_profiles={EXEC_PROFILE_DEFAULT: profile},
                connect_timeout=TIMEOUT_SECONDS,
            )
            connections.callback(cluster.shutdown)
            session = cluster.connect()
        except cassandra_faults() as error:
            raise ConfigurationError(
                f"the Cassandra at --cassandra cannot be used: {said(error)}"
            ) from error
        yield CassandraStore(session, keyspace, *([table] if table else []))


def cassandra_faults() -> tuple[type[Exception], ...]:
    """Return the errors by which a Cassandra says that it cannot be used."""
    from cassandra import DriverException
    from cassandra.cluster import NoHostAvailable

    return (DriverException, NoHostAvailable, OSError)


def clients_of(recruiter: Recruiter) -> Iterator[tuple[str, Any]]:
    """Yield each client of a recruiter's ledger and jobs once, after the name of its owner."""
    from workstealing.metrics.ledger import Ledger
    from workstealing.structures.structure import Structure

    seen = set()
    owned: list[tuple[str, Any]] = [
        (f"hook {type(hook).__name__}", hook.hashes.client)
        for hook in recruiter.hooks()
        if isinstance(hook, Ledger)
    ]
    for name, job in recruiter.jobs().items():
        # A job of the user's own may name what is no structure.
        found = [each.client for each in job.structures if isinstance(each, Structure)]
        owned += [(f"job {name}", each) for each in found or (job.client,)]
    for whose, client in owned:
        if isinstance(client, BlockingClient | AsyncClient) and id(client) not in seen:
            seen.add(id(client))
            yield whose, client


def fleet_of(job: Job) -> Any:
    """Return the `Fleet` over which a job's structures are spread; None if they lie on none."""
    from workstealing.structures.structure import Structure

    found = (each.fleet for each in job.structures if isinstance(each, Structure))
    return next((each for each in found if each is not None), None)


def is_moving(job: Job) -> bool:
    """Say whether a job's structures lie on a fleet whose keys move to new homes."""
    fleet = fleet_of(job)
    return fleet is not None and bool(fleet.former_nodes)


def ledger_for(options: argparse.Namespace, recruiter: Recruiter | None) -> tuple[Any, str]:
    """Return the client for the fleet's figures, None if none is known, and the ledger's name.

    Arguments:
        options: of `add_fleet_options`.
        recruiter: its own ledger is looked at.

    Raises: ConfigurationError, also if it, or the Redis, has several ledgers and the options name
    none. At most one round trip; without a recruiter's ledger, up to a hundred look for ledgers.
    """
    from workstealing.metrics.ledger import Ledger

    hooks = () if recruiter is None else recruiter.hooks()
    own = {hook.name: hook.hashes.client for hook in hooks if isinstance(hook, Ledger)}
    name: str | None = options.ledger
    if name is None:
        if len(own) > 1:
            raise ConfigurationError(
                f"the recruiter has several ledgers: give --ledger {', or '.join(sorted(own))}"
            )
        name = next(iter(own), None)
    client = None if name is None else own.get(name)
    if options.url is None and client is not None and not is_async(client):
        return client, name or "default"
    client = client_for(options.url, recruiter)
    return client, name or _only_ledger(client)


def _only_ledger(client: Any) -> str:
    """Return the name of the one ledger of a Redis, "default" if that is there or none is found.

    If there are others besides "default", a line on stderr names them. Raises: ConfigurationError
    if there are several and none of them is "default".
    """
    if client is None:
        return "default"
    try:
        found = set(_ledgers(client))
        # The walk may end before it has seen all keys.
        is_there = "default" in found or client.exists("ws:ledger.default:layout")
    except FAULTS:
        # The command's own question to it says why.
        return "default"
    others = ", ".join(sorted(found - {"default"}))
    if is_there:
        if others:
            note(
                f"this is the ledger 'default'; the same Redis has the ledgers {others}, too:"
                " --ledger NAME shows one of them"
            )
        return "default"
    if len(found) > 1:
        raise ConfigurationError(
            f"the Redis has several ledgers: give --ledger {', or '.join(sorted(found))}"
        )
    return next(iter(found), "default")


def _ledgers(client: Any) -> Iterator[str]:
    """Yield the names of the ledgers of a Redis, as far as a hundred looks find them."""
    nodes = client.get_primaries() if is_cluster(client) else [None]
    for node in nodes:
        to = {} if node is None else {"target_nodes": node}
        cursor: Any = 0
        for _ in range(_LOOKS_FOR_LEDGERS // len(nodes)):
            cursor, keys = client.scan(cursor, match="ws:ledger.*:layout", count=_KEYS_A_LOOK, **to)
            for each in keys:
                yield printable(to_bytes(each).decode(errors="replace")[10:-7])
            if node is not None:
                # A cluster's client gives a cursor of each node.
                cursor = cursor[node.name]
            if not cursor:
                break


def client_for(url: str | None, recruiter: Recruiter | None) -> Any:
    """Return the client for the fleet's figures, or None if none is known.

    Arguments:
        url: of the command's options.
        recruiter: without a url, the client is that of its ledger or of its jobs.

    Raises: ConfigurationError. At most one round trip.
    """
    if url is not None:
        return client_at(url)
    own = () if recruiter is None else clients_of(recruiter)
    found = next((client for _, client in own if not is_async(client)), None)
    if found is None:
        try:
            return client_at(None)
        except ConfigurationError:
            if recruiter is None:
                raise
    return found


def said(error: BaseException) -> str:
    """Return the text of an error as one line."""
    text = printable(" ".join(str(error).split()))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def address_of(client: Any) -> str:
    """Return where a client's server is, without user and password. No round trip."""
    try:
        if hasattr(client, "get_default_node"):
            node = client.get_default_node()
            return printable(f"{node.host}:{node.port}")
        pool = client.connection_pool
        manager = getattr(pool, "sentinel_manager", None)
        if manager is not None:
            asked = ", ".join(address_of(each) for each in manager.sentinels)
            return f"{printable(str(pool.service_name))} of the sentinels {asked}"
        known = pool.connection_kwargs
    except Exception:  # noqa: BLE001 - a client of the user's own kind, or a cluster that has no node
        return "an unknown address"
    if known.get("path"):
        return printable(str(known["path"]))
    return printable(f"{known.get('host', 'localhost')}:{known.get('port', 6379)}")


def database_of(client: Any) -> str:
    """Return where a client's server is, and which of its databases is used. No round trip."""
    pool = getattr(client, "connection_pool", None)
    known = getattr(pool, "connection_kwargs", None)
    # A cluster has one database alone.
    database = f", database {known.get('db') or 0}" if isinstance(known, dict) else ""
    return f"{address_of(client)}{database}"
