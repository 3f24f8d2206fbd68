"""`workstealing acl`: the least that a user of the server must be allowed."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workstealing.cli.apps import add_app_option, load_app, named_app
from workstealing.cli.output import add_json_option, note, print_json, printable, say
from workstealing.errors import ConfigurationError

if TYPE_CHECKING:
    from workstealing.structures.access import Access

DESCRIPTION = """\
Print the ACL SETUSER line for a server's user who may do what structures and their jobs need, and
nothing else. PASSWORD stands where you write the password. Nothing is sent to a server.
"""
EPILOG = """\
With --app the line covers the structures of all installed jobs, and the ledger; --structure adds
others. Give --keys for each pattern of keys of your own in VolatileHashes and DurableKeys. The
application's own commands are for you to add.
"""
_PARTS = ("ledger", "dashboard", "doctor")
_USERS_KEYS = "*"
_QUEUES = "shuffle_queues"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_app_option(parser)
    parser.add_argument(
        "--structure",
        action="append",
        default=[],
        metavar="KIND",
        help="a kind of structure: volatile_hashes, durable_keys, tracked_set, ick, sharded_ick,"
        " shuffle_queue, time_shard_queue or log; or ledger, dashboard or doctor (repeatable)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the name or the namespace of the structures that --structure names (a ledger's name:"
        " default)",
    )
    parser.add_argument(
        "--namespace",
        default=_QUEUES,
        help="the namespace of a shuffle_queue (default: %(default)s)",
    )
    parser.add_argument(
        "--keys",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a pattern of your own keys, for volatile_hashes and durable_keys (repeatable; by"
        " default all keys)",
    )
    parser.add_argument(
        "--user",
        default="workstealing",
        metavar="NAME",
        help="the name of the server's user (default: %(default)s)",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="volatile_hashes of the native backend, on a server with Redis 8's commands",
    )
    parser.add_argument(
        "--cluster",
        action="store_true",
        help="with the commands by which a client learns the map of a cluster",
    )
    add_json_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print the line. Returns: 0. Raises: ConfigurationError."""
    from workstealing.structures.access import rule

    is_cluster, parts = options.cluster, []
    if named_app(options.app):
        recruiter = load_app(options.app)
        found = list(_parts_of(recruiter))
        is_cluster = is_cluster or any(each.pop("is_cluster") for each in found)
        parts += found
    parts += [_part(kind, options) for kind in options.structure]
    if not parts:
        raise ConfigurationError(
            "no structure was named: give --structure KIND --name NAME, or --app"
        )
    users = tuple(options.keys) or (_USERS_KEYS,)
    if not options.keys and any(each["access"].users_keys for each in parts):
        note("the line allows all keys: give --keys PATTERN for those of your own")
    for each in parts:
        access: Access = each.pop("access")
        each["keys"] = access.patterns(each["name"], each.pop("namespace"), users)
        allowed = access.allowed(native=options.native, cluster=is_cluster)
        each["commands"] = sorted(allowed)
        each["line"] = rule(options.user, each["keys"], allowed)
    line = rule(
        options.user,
        [key for each in parts for key in each["keys"]],
        {command for each in parts for command in each["commands"]},
    )
    if options.json:
        print_json({"user": options.user, "line": line, "structures": parts})
    else:
        say(line)
    return 0


def _parts_of(recruiter: Any) -> Iterator[dict[str, Any]]:
    """Yield a recruiter's structures and ledgers once each; say which ones have no rule."""
    from workstealing.store.twin import is_cluster
    from workstealing.structures.access import ACCESS

    seen = set()
    for name, job in recruiter.jobs().items():
        for structure in job.structures:
            access = ACCESS.get(getattr(structure, "kind", ""))
            client = getattr(structure, "client", None)
            if access is None or client is None:
                note(f"job {printable(name)} works on something of no rule: add what it needs")
                continue
            namespace = getattr(structure, "namespace", "")
            if (structure.kind, structure.name, namespace) not in seen:
                seen.add((structure.kind, structure.name, namespace))
                yield {
                    "kind": structure.kind,
                    "name": structure.name,
                    "namespace": namespace,
                    "access": access,
                    "is_cluster": is_cluster(client),
                }
        if not job.structures:
            note(f"job {printable(name)} names no structure: add what it needs")
    for hook in recruiter.hooks():
        hashes = getattr(hook, "hashes", None)
        if hashes is not None and ("ledger", hook.name, "") not in seen:
            seen.add(("ledger", hook.name, ""))
            yield {
                "kind": "ledger",
                "name": hook.name,
                "namespace": "",
                "access": _access_of("ledger"),
                "is_cluster": is_cluster(hashes.client),
            }


def _part(word: str, options: argparse.Namespace) -> dict[str, Any]:
    from workstealing.structures.access import ACCESS

    kinds = {each.lower().replace(" ", "_"): each for each in ACCESS if each != "shuffle queues"}
    kind = kinds.get(word, word if word in _PARTS else None)
    if kind is None:
        raise ConfigurationError(
            f"the structure {word!r} is not known: give one of {', '.join((*kinds, *_PARTS))}"
        )
    if options.name is None and kind not in _PARTS:
        raise ConfigurationError(f"no name was given for the {kind}: give --name NAME")
    return {
        "kind": kind,
        "name": "default" if options.name is None else options.name,
        "namespace": options.namespace,
        "access": _access_of(kind),
    }


def _access_of(kind: str) -> Access:
    from workstealing.structures.access import ACCESS

    if kind in ACCESS:
        return ACCESS[kind]
    from workstealing.cli.server_checks import DOCTOR
    from workstealing.metrics.minutes import DASHBOARD, LEDGER

    return {"ledger": LEDGER, "dashboard": DASHBOARD, "doctor": DOCTOR}[kind]
