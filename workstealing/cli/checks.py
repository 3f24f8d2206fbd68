"""The checks of `workstealing doctor`: of this environment, a server, a client, a recruiter."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import statistics
import time
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

from workstealing.cli.clients import FAULTS, is_moving, said
from workstealing.cli.output import printable
from workstealing.cli.server_checks import cluster, field_expiry, fields, memory, rights
from workstealing.errors import Moved, Unmapped, WorkStealingError
from workstealing.metrics.ledger import Ledger
from workstealing.metrics.minutes import LEDGER
from workstealing.recruiting import Job, Recruiter
from workstealing.recruiting.lottery import DISABLED_VARIABLE, is_disabled
from workstealing.recruiting.slice import TRIPS, seconds_for
from workstealing.store.budget import Budget
from workstealing.store.client import URL_VARIABLES
from workstealing.store.job_client import JobClient, Node, is_async, is_cluster
from workstealing.store.redis_versions import retries_of
from workstealing.structures.access import access_of, job_access
from workstealing.structures.structure import FAULT, NOTE, OK, WARNING, Check, Structure
from workstealing.structures.volatile_hashes.commands import (
    NATIVE_COMMANDS,
    OPTIONAL_NATIVE_COMMANDS,
)
from workstealing.structures.volatile_hashes.server_faults import reason_against

OLDEST_SERVER = (6, 2)
# From this Redis on, scripts write only where min-replicas-to-write lets commands write.
BINDS_SCRIPTS = (7, 0)
PINGS = 20
SLICE_SECONDS = 0.010
CLOCK_SECONDS = 2.0
SECONDS = 2.0
_EXPIRES_ITSELF = "the server expires hash fields itself"
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def environment() -> Iterator[Check]:
    """Check Python, the packages, the extras and the environment's variables. No command."""
    version = importlib.metadata.version
    yield Check(
        "python",
        OK,
        f"{platform.python_implementation()} {platform.python_version()}, workstealing"
        f" {version('workstealing')}, redis-py {version('redis')}",
    )
    try:
        yield Check("hiredis", OK, f"hiredis {version('hiredis')} parses replies")
    except importlib.metadata.PackageNotFoundError:
        yield Check("hiredis", NOTE, "not installed; with it, redis-py parses large replies faster")
    found = sorted(extras().items())
    if whole := [extra for extra, missing in found if not missing]:
        yield Check("extras", OK, f"installed: {', '.join(whole)}")
    if lacking := [f"{extra} ({', '.join(missing)})" for extra, missing in found if missing]:
        yield Check(
            "other extras",
            NOTE,
            f"not installed, with what is missing: {', '.join(lacking)}; if you need one: pip"
            " install 'workstealing[EXTRA]'",
        )
    if is_disabled():
        yield Check("recruiting", WARNING, f"{DISABLED_VARIABLE} is set, so nobody is recruited")
    named = [each for each in URL_VARIABLES if os.environ.get(each, "").strip()]
    if named:
        yield Check("environment", OK, f"{named[0]} names the Redis")


def extras() -> dict[str, list[str]]:
    """Return the missing packages of each extra; packages that other extras bring do not count."""
    found: dict[str, list[str]] = {}
    for requirement in importlib.metadata.requires("workstealing") or ():
        extra, name = _EXTRA.search(requirement), _NAME.match(requirement)
        if extra is None or name is None or name[0] == "workstealing":
            continue
        missing = found.setdefault(extra[1], [])
        try:
            importlib.metadata.version(name[0])
        except importlib.metadata.PackageNotFoundError:
            missing.append(name[0])
    return found


def settings(client: Any) -> Iterator[Check]:
    """Check the settings of an application's own client. No command."""
    kind = ("asyncio " if is_async(client) else "") + type(client).__name__
    if is_cluster(client):
        # An asyncio client has the settings itself; a blocking one's nodes' manager has them.
        manager = client.nodes_manager
        options = dict(getattr(client, "connection_kwargs", None) or manager.connection_kwargs)
        retry = getattr(client, "retry", None)
        found = {name: options.get(name) for name in _TIMEOUTS}
    else:
        # It is made, but not connected: the connection itself fills in settings that a URL omits.
        pool = client.connection_pool
        connection = pool.connection_class(**pool.connection_kwargs)
        retry = connection.retry
        found = {name: getattr(connection, name, None) for name in _TIMEOUTS}
    retries = retries_of(retry)
    yield Check(
        "client",
        OK,
        f"{kind}; retries {retries} (jobs never do: they have connections of their own)",
    )
    for option, seconds in found.items():
        if seconds is None:
            yield Check(
                option,
                WARNING,
                "no time-out: a server that falls silent holds the application's calls for ever"
                " (jobs have a time-out of their own)",
            )
        else:
            yield Check(option, OK, f"{seconds:g} s")


def server(job_client: JobClient, node: Node, address: str) -> Iterator[Check]:
    """Check a server, or one node of a cluster, by its INFO, a few pings and a probe of its own.

    A fact that the server refuses to tell is reported as unknown, and not guessed.

    Arguments:
        address: where it is, for people.

    Raises: connection faults. About 25 round trips, and a second where the server expires fields
    itself.
    """
    optional = (*NATIVE_COMMANDS, *OPTIONAL_NATIVE_COMMANDS)
    replies = job_client.call(
        node,
        [("INFO",), ("TIME",), ("COMMAND", "INFO", *optional), ("ROLE",)],
        Budget.whole(SECONDS),
    )
    where = f" at {address}"
    if isinstance(replies[0], Exception):
        info: dict[str, str] = {}
        yield Check(
            "server",
            NOTE,
            f"the server{where} refuses INFO, so its version, its memory and its eviction policy"
            f" are unknown: {said(replies[0])}",
        )
    else:
        info = fields(replies[0])
        yield _version(info, where)
    yield _role(info, replies[3])
    yield from _replicas(info)
    yield from memory(info)
    native = _native(replies[2], optional, info)
    yield native
    if job_client.is_cluster:
        yield from cluster(job_client, node)
    if native.said.startswith(_EXPIRES_ITSELF):
        yield field_expiry(job_client, node)
    yield _round_trip(job_client, node)
    yield _clock(replies[1])


def _product(info: dict[str, str]) -> tuple[str, str, tuple[int, ...]]:
    """Return a server's name, its version as it tells it ("" if not), and as two numbers."""
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version") or info.get("redis_version") or ""
    return name, version, tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _version(info: dict[str, str], where: str) -> Check:
    product, version, number = _product(info)
    if not version:
        return Check("server", NOTE, f"the server{where} does not tell its version")
    if product == "Redis" and number < OLDEST_SERVER:
        oldest = ".".join(map(str, OLDEST_SERVER))
        return Check(
            "server", FAULT, f"{product} {version}{where} is too old: use {oldest} or newer"
        )
    # Valkey calls it by another name.
    mode = info.get("redis_mode") or info.get("server_mode")
    return Check("server", OK, f"{product} {version}{where}{f', {mode}' if mode else ''}")


def _replicas(info: dict[str, str]) -> Iterator[Check]:
    """Check whether min-replicas-to-write, where it is set, binds scripts. No command."""
    product, version, number = _product(info)
    # INFO has this line only where the setting is on.
    if "min_slaves_good_slaves" in info and product == "Redis" and (0,) < number < BINDS_SCRIPTS:
        yield Check(
            "replicas",
            WARNING,
            f"min-replicas-to-write does not bind the scripts of Redis {version} (redis#9993):"
            " what structures write is taken even while replicas are missing, and a failover can"
            " lose it; Redis 7.0 and newer refuse it",
        )


def _role(info: dict[str, str], reply: Any) -> Check:
    told = info.get("role")
    if told is None and not isinstance(reply, Exception) and reply:
        told = reply[0].decode() if isinstance(reply[0], bytes) else str(reply[0])
    if told is None:
        return Check(
            "role",
            NOTE,
            "the server does not tell whether it is a replica, on which jobs and structures cannot"
            " write",
        )
    if told == "slave":
        return Check(
            "role", FAULT, "this is a replica, but jobs and structures write: name its master"
        )
    return Check("role", OK, "a primary, which takes writes")


def _clock(reply: Any) -> Check:
    if isinstance(reply, Exception):
        return Check(
            "clock", NOTE, f"the server refuses TIME, so its clock is unknown: {said(reply)}"
        )
    ahead = float(reply[0]) + float(reply[1]) / 1e6 - time.time()
    return Check(
        "clock",
        OK if abs(ahead) < CLOCK_SECONDS else NOTE,
        f"the server's clock is {abs(ahead):.2g} s {'ahead of' if ahead > 0 else 'behind'} this"
        " machine's; expiry and leases go by the server's",
    )


def _native(reply: Any, wanted: tuple[str, ...], info: dict[str, str]) -> Check:
    if isinstance(reply, Exception):
        return Check(
            "native",
            NOTE,
            "the server refuses COMMAND INFO, so it is unknown whether it expires hash fields"
            f" itself: {said(reply)}",
        )
    found = {name for name, each in zip(wanted, reply, strict=True) if each}
    missing = [name for name in wanted if name not in found]
    if set(NATIVE_COMMANDS) <= found:
        if against := reason_against(info):
            return Check(
                "native",
                NOTE,
                f'{_EXPIRES_ITSELF}, but "auto" takes that for no new namespace: {against}',
            )
        rest = f"; a script stands in for {', '.join(missing)}" if missing else ""
        return Check("native", OK, f"{_EXPIRES_ITSELF}, for new namespaces{rest}")
    return Check(
        "native", OK, f"the server has no {', '.join(missing)}: scripts expire hash fields"
    )


def _round_trip(job_client: JobClient, node: Node) -> Check:
    median = _median(job_client, node)
    trips = f"a slice of {1000 * SLICE_SECONDS:g} ms has time for {SLICE_SECONDS / median:,.0f}"
    said_ = f"{1000 * median:.2f} ms: {trips}"
    if seconds_for(median) <= SLICE_SECONDS:
        return Check("round trip", OK, said_)
    wanted = f"{TRIPS} are wanted: seconds={seconds_for(median):g} gives slices time for them"
    return Check("round trip", WARNING, f"{said_}, and {wanted}")


def _median(job_client: JobClient, node: Node) -> float:
    """Return the seconds of a round trip, the median of a few pings."""
    took = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        job_client.call(node, [("PING",)], Budget.whole(SECONDS))
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


def _too_short(recruiter: Recruiter) -> Iterator[Check]:
    """Check whether the jobs' slices have time for the round trips to their servers."""
    medians: dict[Hashable, float] = {}
    for name, job in recruiter.jobs().items():
        server = job.dependency
        job_client = getattr(server, "job_client", None)
        if not isinstance(job_client, JobClient):
            continue
        if server not in medians:
            try:
                # An asyncio cluster's client may not know its nodes yet.
                medians[server] = max(
                    (_median(job_client, each) for each in job_client.nodes()), default=0.0
                )
            except (WorkStealingError, *FAULTS):
                # The check of the server says why.
                continue
        given, longest = recruiter.slice_seconds(name)
        if given < TRIPS * medians[server]:
            enough = seconds_for(medians[server])
            yield Check(
                f"job {printable(name)}",
                WARNING,
                f"its slices of {1000 * given:g} ms have time for"
                f" {given / medians[server]:.0f} round trips of"
                f" {1000 * medians[server]:.2f} ms, and {TRIPS} are wanted: install it with"
                f" seconds={enough:g} (until then they lengthen themselves, up to"
                f" {1000 * longest:g} ms)",
            )


def recruiting(recruiter: Recruiter) -> Iterator[Check]:
    """Check a recruiter: its jobs, its hooks, and the structures behind the jobs.

    One to four round trips for each structure, and a few pings to each server.
    """
    figures = recruiter.stats()["jobs"]
    if not figures:
        yield Check("jobs", WARNING, "no job is installed, so every caller is dismissed")
        return
    together = sum(each["rate"] for each in figures.values())
    listed = ", ".join(printable(name) for name in figures)
    yield Check("jobs", OK, f"{len(figures)} installed, rates together {together:.4g}: {listed}")
    hooks = ", ".join(type(hook).__name__ for hook in recruiter.hooks())
    if hooks:
        yield Check("hooks", OK, hooks)
    else:
        yield Check(
            "hooks", NOTE, "no hook: neither metrics, nor a ledger for `workstealing status`"
        )
    yield from _too_short(recruiter)
    for name, job in recruiter.jobs().items():
        what = f"job {printable(name)}"
        for structure in job.structures:
            yield from _structure(what, structure)
            access = access_of(structure, job, is_moving=is_moving(job))
            yield from rights(what, structure, access)
        if not job.structures:
            yield from _rights_of_job(what, job)
    for hook in recruiter.hooks():
        if isinstance(hook, Ledger):
            named = (hook.name, "")
            yield from rights(f"ledger {printable(hook.name)}", hook.hashes, LEDGER, named)


def _rights_of_job(what: str, job: Job) -> Iterator[Check]:
    """Check the rights of a job on the keys of others, which names no structure."""
    of_job = job_access(job)
    if of_job is None or of_job.more is None:
        yield Check(f"{what} rights", NOTE, "it names no structure, so no rights were looked at")
    else:
        yield from rights(what, job, of_job.more, (job.name, ""), about="the job")


def _structure(what: str, structure: Structure) -> Iterator[Check]:
    """Ask a structure whether its keys exist and belong to it."""
    try:
        for each in structure.inspect(structure.check_steps(), SECONDS):
            yield replace(each, what=f"{what}{each.what}", said=printable(each.said))
    except (WorkStealingError, *FAULTS) as error:
        # An asyncio client that has not yet asked for the cluster's map is no fault.
        is_new = isinstance(error, Moved | Unmapped) and is_async(structure.client)
        named = f"{structure.kind} {printable(structure.name)}"
        yield Check(what, NOTE if is_new else FAULT, f"{named}: {said(error)}")
