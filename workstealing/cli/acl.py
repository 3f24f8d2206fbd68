"""`workstealing acl`: the least that a user of the server must be allowed."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from workstealing.cli.clients import add_app_option, is_moving, load_app, named_app
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
_USERS_KEYS = "*"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    add_app_option(parser)
    parser.add_argument(
        "--structure",
        action="append",
        default=[],
        metavar="KIND",
        help="a kind of structure, such as volatile_hashes, tracked_set or log; or ledger,"
        " dashboard, doctor, spark, survey or sentinels (repeatable)",
    )
    parser.add_argument(
        "--job",
        action="append",
        default=[],
        metavar="JOB",
        help="a ready-made job with the structure that it serves: adopt_hashes, fleet_rebalance ..."
        " (repeatable)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the name or the namespace of the structures that --structure and --job name, or of"
        " the job leftovers (of a ledger: default)",
    )
    parser.add_argument(
        "--namespace",
        help="the namespace of a shuffle_queue or a fair_queue (default: shuffle_queues,"
        " fair_queues)",
    )
    parser.add_argument(
        "--keys",
        action="append",
        default=[],
        metavar="PATTERN",
        help="a pattern of your own keys, for volatile_hashes and durable_keys, of the names of"
        " queues that queue_expiry may delete, and of the keys of another program that leftovers"
        " clean (repeatable; by default all keys)",
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
        "--fleet",
        action="store_true",
        help="volatile_hashes and durable_keys on a Fleet whose keys move to new homes (previous=)",
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
    parts += _named(options)
    if not parts:
        raise ConfigurationError(
            "no structure was named: give --structure KIND --name NAME, or --job, or --app"
        )
    users = tuple(options.keys) or (_USERS_KEYS,)
    if not options.keys and any(each["access"].users_keys for each in parts):
        note("the line allows all keys: give --keys PATTERN for those of your own")
    for each in parts:
        access: Access = each.pop("access")
        each["keys"] = access.patterns(each["name"], each.pop("namespace"), users)
        is_native = each.pop("is_native") or options.native
        allowed = access.allowed(native=is_native, cluster=is_cluster)
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
    from workstealing.metrics.ledger import Ledger
    from workstealing.store.job_client import is_cluster
    from workstealing.structures.access import access_of, job_access, names_of
    from workstealing.structures.layout import as_text

    seen: set[tuple[str, ...]] = set()
    for name, job in recruiter.jobs().items():
        of_job = job_access(job)
        extended = type(job).__name__ if of_job is not None and of_job.more is not None else ""
        for structure in job.structures:
            access = access_of(structure, job, is_moving=is_moving(job))
            client = structure.client
            if access is None or client is None:
                note(f"job {printable(name)} works on something of no rule: add what it needs")
                continue
            named, namespace = names_of(structure)
            identity = (structure.kind, extended, named, namespace)
            if identity not in seen:
                seen.add(identity)
                yield {
                    "kind": structure.kind,
                    "name": named,
                    "namespace": namespace,
                    "access": access,
                    "is_native": of_job is not None and of_job.native,
                    "is_cluster": is_cluster(client),
                }
        if not job.structures and of_job is not None and of_job.more is not None:
            rules = getattr(job, "rules", ())
            patterns = ", ".join(sorted({printable(as_text(each.where.pattern)) for each in rules}))
            if patterns:
                note(
                    f"job {printable(name)} reads {patterns} and the keys that its rules look at:"
                    " let --keys cover them"
                )
            yield {
                "kind": _snake(type(job).__name__),
                "name": job.name,
                "namespace": "",
                "access": of_job.more,
                "is_native": of_job.native,
                "is_cluster": is_cluster(job.client),
            }
        elif not job.structures:
            note(f"job {printable(name)} names no structure: add what it needs")
    for hook in recruiter.hooks():
        if isinstance(hook, Ledger) and ("ledger", hook.name) not in seen:
            seen.add(("ledger", hook.name))
            yield {
                "kind": "ledger",
                "name": hook.name,
                "namespace": "",
                "access": _own_parts()["ledger"],
                "is_native": False,
                "is_cluster": is_cluster(hook.hashes.client),
            }


def _named(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the parts that --structure and --job name. Raises: ConfigurationError."""
    import workstealing.jobs
    from workstealing.structures.access import MOVING, ON_FLEETS, access_by_kind, job_access

    accesses = access_by_kind()
    kinds = {each.lower().replace(" ", "_"): each for each in accesses}
    names = {_snake(each): each for each in workstealing.jobs.__all__}
    asked: list[tuple[str, Access, bool]] = []
    for word in options.structure:
        if word in kinds:
            asked.append((kinds[word], accesses[kinds[word]], False))
        elif word in (own := _own_parts()):
            asked.append((word, own[word], False))
        else:
            raise ConfigurationError(
                f"the structure {word!r} is not known: give one of {', '.join((*kinds, *own))}"
            )
    for word in options.job:
        job = job_access(getattr(workstealing.jobs, names[word])) if word in names else None
        if job is None:
            jobs = [one for one, n in names.items() if job_access(getattr(workstealing.jobs, n))]
            raise ConfigurationError(
                f"the job {word!r} is not known: give one of {', '.join(jobs)}"
            )
        asked += [(each, job.on(accesses[each]), job.native) for each in job.kinds]
        if not job.kinds and job.more is not None:
            asked.append((word, job.more, job.native))
    for kind, access, is_native in asked:
        if options.name is None and kind in (*accesses, *options.job):
            raise ConfigurationError(f"no name was given for the {kind}: give --name NAME")
        yield {
            "kind": kind,
            "name": "default" if options.name is None else options.name,
            # By default queues lie in the namespace that has their kind's name.
            "namespace": options.namespace or f"{kind.replace(' ', '_')}s",
            "access": access.plus(MOVING) if options.fleet and kind in ON_FLEETS else access,
            "is_native": is_native,
        }


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _own_parts() -> dict[str, Access]:
    from workstealing.cli.server_checks import DOCTOR, OF_SENTINELS
    from workstealing.metrics.minutes import DASHBOARD, LEDGER
    from workstealing.spark.sources.options import OF_SPARK
    from workstealing.spark.sources.redis_options import OF_PLAIN_KEYS
    from workstealing.survey.scanning import OF_SURVEY

    return {
        "ledger": LEDGER,
        "dashboard": DASHBOARD,
        "doctor": DOCTOR,
        "spark": OF_SPARK,
        "spark_redis": OF_PLAIN_KEYS,
        "survey": OF_SURVEY,
        "sentinels": OF_SENTINELS,
    }
