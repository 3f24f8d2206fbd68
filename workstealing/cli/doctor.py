"""`workstealing doctor`: the installed, native, missing and faulty parts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from workstealing.cli.clients import (
    ENVIRONMENT,
    FAULTS,
    add_app_option,
    add_url_option,
    application_prints_to_stderr,
    client_at,
    clients_of,
    database_of,
    load_app,
    named_app,
    said,
)
from workstealing.cli.output import add_json_option, print_json, printable, say
from workstealing.errors import ConfigurationError, WorkStealingError
from workstealing.store.client import URL_VARIABLES

if TYPE_CHECKING:
    from workstealing.recruiting import Recruiter
    from workstealing.structures.structure import Check

FAULTY = 1

DESCRIPTION = """\
Examine this environment, the Redis and the recruiter: versions, extras, the eviction policy, the
client's settings, its user's rights, which commands are native, how long a round trip takes, how
late the server expires fields. Nothing is changed but a key of its own, which ends in a minute.
"""
EPILOG = """\
exit status: 0, or 1 if something does not work, or 2 for bad input. Without --app and --url the
environment's Redis is examined, if it names one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_app_option(parser)
    add_url_option(parser, f"that of the recruiter's jobs, else {ENVIRONMENT}")
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Run all checks. Returns: 0, or 1 if something does not work. Raises: WorkStealingError."""
    from workstealing.structures.structure import FAULT

    with application_prints_to_stderr():
        found = list(_examine(options))
    is_well = all(each.level != FAULT for each in found)
    if options.json:
        print_json({"is_well": is_well, "checks": [asdict(each) for each in found]})
    else:
        width = max(len(each.what) for each in found)
        for each in found:
            say(f"{each.level:8}{printable(each.what):{width + 2}}{printable(each.said)}")
    return 0 if is_well else FAULTY


def _examine(options: argparse.Namespace) -> Iterator[Check]:
    from workstealing.cli.checks import environment, recruiting
    from workstealing.structures.structure import FAULT, NOTE, Check

    recruiter = load_app(options.app) if named_app(options.app) else None
    given = client_at(options.url) if options.url is not None else None
    yield from environment()
    clients: list[tuple[str, Any]] = [] if recruiter is None else list(clients_of(recruiter))
    if given is not None:
        clients = [("--url", given)]
    elif not clients:
        try:
            clients = [("the environment", client_at(None))]
        except ConfigurationError as error:
            named = any(f"of {each}" in str(error) for each in URL_VARIABLES)
            why = str(error) if named else "no server was named: give --url or --app to examine one"
            yield Check("server", FAULT if named else NOTE, why)
    nodes: dict[int, str] = {}
    if recruiter is not None and given is None:
        for check, on_nodes in _fleets(recruiter):
            yield check
            nodes |= {id(client): name for name, client in on_nodes.items()}
    is_one = len({database_of(client) for _, client in clients}) < 2
    for whose, client in clients:
        # A fleet is examined node by node; of several servers each line names its own.
        node = nodes.get(id(client))
        label = f"node {node} " if node else "" if is_one else f"{database_of(client)} "
        for check in _server(whose, client, is_own=given is None):
            yield replace(check, what=f"{label}{check.what}")
    if recruiter is not None:
        yield from recruiting(recruiter)


def _fleets(recruiter: Recruiter) -> Iterator[tuple[Check, dict[str, Any]]]:
    """Yield the check of each fleet that jobs work on, and the clients of its nodes by name."""
    from workstealing.cli.clients import fleet_of
    from workstealing.cli.server_checks import fleet
    from workstealing.jobs import FleetRebalance

    found: dict[int, tuple[str, Any]] = {}
    carried = set()
    for name, job in recruiter.jobs().items():
        whole = fleet_of(job)
        if whole is not None:
            found.setdefault(id(whole), (name, whole))
            if isinstance(job, FleetRebalance):
                carried.add(id(whole))
    for key, (name, whole) in found.items():
        check = fleet(name, whole, is_carried=key in carried)
        yield check, {**whole.former_nodes, **whole.nodes}


def _server(whose: str, client: Any, *, is_own: bool) -> Iterator[Check]:
    from workstealing.cli.checks import server, settings
    from workstealing.cli.server_checks import sentinels
    from workstealing.store.job_client import job_client_of
    from workstealing.structures.structure import FAULT, Check

    if is_own:
        yield from settings(client)
    try:
        job_client = job_client_of(client)
        yield from sentinels(job_client)
        for node in job_client.nodes():
            at = database_of(client) if node is None else f"{node[0]}:{node[1]}"
            yield from server(job_client, node, at)
    except (WorkStealingError, *FAULTS) as error:
        asked = f"(asked at {database_of(client)})"
        yield Check("server", FAULT, f"the server of {whose} cannot be used: {said(error)} {asked}")
