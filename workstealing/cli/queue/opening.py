"""How a verb opens its queue: the kind, and the database that has it.

`KINDS` lists the kinds. A queue of Redis is of the kind that is there, unless --kind says it.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

from workstealing.cli.clients import add_url_option, cassandra_at, client_at
from workstealing.cli.output import printable
from workstealing.cli.queue.fair import OpenFairQueue
from workstealing.cli.queue.kind import OpenQueue
from workstealing.cli.queue.shuffle import OpenShuffleQueue
from workstealing.cli.queue.time_shards import OpenTimeShardQueue
from workstealing.errors import ConfigurationError
from workstealing.structures.layout import as_text

KINDS: dict[str, type[OpenQueue]] = {
    each.kind: each for each in (OpenShuffleQueue, OpenFairQueue, OpenTimeShardQueue)
}
"""Each kind of queue, by its name for --kind."""


def add_queue_options(parser: argparse.ArgumentParser) -> None:
    """Add NAME, --kind, --url and --cassandra to a verb's options."""
    parser.add_argument("name", metavar="NAME", help="the queue's name")
    called = "; ".join(f"{name}: a {kind.called}" for name, kind in KINDS.items())
    parser.add_argument(
        "--kind", choices=tuple(KINDS), help=f"{called} (default: the kind that is there)"
    )
    where = parser.add_mutually_exclusive_group()
    add_url_option(where)
    where.add_argument(
        "--cassandra",
        metavar="URL",
        help="a TimeShardQueue's Cassandra: cassandra://user:password@host:port/keyspace/table"
        " (default: port 9042, the table time_shard_queue, no password)",
    )


def opened(
    options: argparse.Namespace, connections: ExitStack, *, begins: bool = False
) -> OpenQueue:
    """Open the queue that the options name; its connections to Cassandra end with the stack.

    Arguments:
        begins: the verb may begin a queue that is not there yet.

    Returns: a queue of the named kind, or else of the kind that is there. Raises:
    ConfigurationError if there is no such queue and no kind is named, for an option that the kind
    does not have, and for a database that cannot be used. At most five round trips.
    """
    name = os.fsencode(options.name)
    kind = None if options.kind is None else KINDS[options.kind]
    if options.cassandra is not None:
        return _on_cassandra(options, connections, name, kind, begins=begins)
    _refuse_others_options(options, kind)
    if getattr(options, "create_table", False):
        raise ConfigurationError(
            "--create-table is for --cassandra, and this is a Redis: leave it out"
        )
    client = client_at(options.url)
    if kind is None:
        kind = _kind_of(client, name, begins=begins)
        _refuse_others_options(options, kind)
    return kind.on_redis(client, name, options)


def _on_cassandra(
    options: argparse.Namespace,
    connections: ExitStack,
    name: bytes,
    kind: type[OpenQueue] | None,
    *,
    begins: bool,
) -> OpenQueue:
    if kind is None:
        kind = OpenTimeShardQueue
    elif not kind.is_on_cassandra:
        raise ConfigurationError(
            f"--cassandra has no {kind.called}: leave out --kind {kind.kind}, or give --url"
        )
    _refuse_others_options(options, kind)
    store = connections.enter_context(cassandra_at(options.cassandra))
    queue = kind.on_cassandra(store, name, options)
    if queue.is_new and not begins:
        raise ConfigurationError(
            f"there is no queue {as_text(name)!r} in {store.table}: check the name and --cassandra"
        )
    return queue


def _refuse_others_options(options: argparse.Namespace, kind: type[OpenQueue] | None) -> None:
    """Refuse an option that only another kind has; nothing if no kind is known yet."""
    if kind is None:
        return
    for other in KINDS.values():
        for option in sorted(other.own_options - kind.own_options):
            if getattr(options, option, None) not in (None, False):
                raise ConfigurationError(
                    f"--{option.replace('_', '-')} is for a {other.called}, and this is a"
                    f" {kind.called}: leave it out"
                )


def _kind_of(client: Any, name: bytes, *, begins: bool) -> type[OpenQueue]:
    found = [kind for kind in KINDS.values() if kind.is_there(client, name)]
    text = printable(as_text(name))
    if len(found) > 1:
        both = " and ".join(f"a {each.called}" for each in found)
        raise ConfigurationError(f"there is {both} {text!r}: say which by --kind")
    if not found and begins:
        kinds = " or ".join(f"--kind {each}" for each in KINDS)
        raise ConfigurationError(
            f"there is no queue {text!r} in this Redis yet: give {kinds} to begin one, or check the"
            " name and --url"
        )
    if not found:
        raise ConfigurationError(
            f"there is no queue {text!r} in this Redis: check the name and --url"
        )
    return found[0]
