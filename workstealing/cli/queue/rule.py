"""`workstealing queue rule NAME [ACCOUNT]`: a FairQueue's rules, and why an account waits."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import Any

from workstealing.cli.arguments import FAIR, duration
from workstealing.cli.clients import FAULTS, add_url_option, client_at, said
from workstealing.cli.output import Picture, add_json_option, print_json, printable, say
from workstealing.errors import ConfigurationError
from workstealing.structures import FairQueue
from workstealing.structures.fair_queue.names import FairQueueNames
from workstealing.structures.fair_queue.rules import (
    AccountRule,
    changed_rule,
    is_pattern,
    is_said,
    settings_of,
)

FAILED = 1
DESCRIPTION = """\
Show or change the rules of a FairQueue's accounts: weights, caps, rates. A change holds at once,
for messages that wait already too. With an account and no setting, say why its messages wait.
"""
EPILOG = """\
A setting that is not given stays as it is. ACCOUNT may be a pattern: * for any letters, ? for one;
* alone is the default of all. Exit status: 0, or 1 if the server failed, or 2 for bad input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to the command's parser."""
    parser.add_argument("name", metavar="NAME", help="the queue's name")
    parser.add_argument(
        "account", metavar="ACCOUNT", nargs="?", help="an account, or a pattern (default: show all)"
    )
    add_url_option(parser)
    add_json_option(parser)
    parser.add_argument("--weight", type=float, metavar="N", help="its share, beside others")
    parser.add_argument(
        "--max-in-flight", type=int, metavar="N", help="how many messages may be in hand at once"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="how many a second are delivered")
    parser.add_argument("--burst", type=int, metavar="N", help="how many at once after a pause")
    parser.add_argument(
        "--estimate", type=duration, metavar="TIME", help="the work of a first message, 500ms say"
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="how many messages may wait")
    parser.add_argument(
        "--lower", type=float, metavar="N", help="the share of priority 0 beside priority 1, 0 to 1"
    )
    last = parser.add_mutually_exclusive_group()
    last.add_argument("--pause", dest="paused", action="store_true", default=None)
    last.add_argument("--resume", dest="paused", action="store_false", help="end a --pause")
    last.add_argument("--remove", action="store_true", help="remove the rule as a whole")


def run(options: argparse.Namespace) -> int:
    """Show, change, or say why.

    Returns: 0, or 1 if the server failed. Raises: WorkStealingError for bad input.
    """
    client = client_at(options.url)
    try:
        names = FairQueueNames(os.fsencode(options.name))
        namespace = client.hget(names.meta, "namespace")
        if namespace is None:
            raise ConfigurationError(
                f"there is no FairQueue {printable(options.name)!r} in this Redis: check the name"
                " and --url"
            )
        queue: FairQueue = FairQueue(client, names.name, namespace=_text(namespace))
        return _do(queue, options)
    except FAULTS as error:
        say(f"! the queue could not be asked: {said(error)}\n")
        return FAILED


def _do(queue: FairQueue, options: argparse.Namespace) -> int:
    given = {
        each.name: getattr(options, each.name)
        for each in dataclasses.fields(AccountRule)
        if getattr(options, each.name) is not None
    }
    account = options.account
    if account is None:
        if given or options.remove:
            raise ConfigurationError(
                "a setting needs an account or a pattern: give one after NAME, '*' for all accounts"
            )
        _show(queue, options, queue.rules())
    elif options.remove:
        if given:
            raise ConfigurationError("--remove removes the whole rule: give no setting with it")
        was = queue.remove_rule(account)
        _tell(options, {"removed": was}, "removed" if was else "there was no such rule")
    elif given:
        rule = changed_rule(queue.rules().get(account, AccountRule()), given)
        if is_said(rule):
            queue.set_rule(account, **settings_of(rule))
        else:
            queue.remove_rule(account)
        _show(queue, options, {account: rule} if is_said(rule) else {})
    elif is_pattern(account):
        _show(queue, options, {each: of for each, of in queue.rules().items() if each == account})
    else:
        found = queue.explain_wait(account)
        state = None if found.state is None else dataclasses.asdict(found.state)
        _tell(options, {"why": found.why, "ready": found.ready, "state": state}, found.why)
    return 0


def _show(queue: FairQueue, options: argparse.Namespace, rules: dict[str, AccountRule]) -> None:
    if options.json:
        shown = {name: settings_of(rule) for name, rule in rules.items()}
        print_json({"queue": queue.name, "kind": FAIR, "rules": shown})
        return
    names = [each.name for each in dataclasses.fields(AccountRule)]
    rows = [
        (name, *("-" if (of := getattr(rule, each)) is None else _said(of) for each in names))
        for name, rule in sorted(rules.items())
    ]
    columns = ("account", *(each.replace("_", " ") for each in names))
    head = f"rules of FairQueue {queue.name}" if rows else f"FairQueue {queue.name}: no rules"
    say((Picture(head, columns, rows) if rows else Picture(head)).text() + "\n")


def _tell(options: argparse.Namespace, data: dict[str, Any], sentence: str) -> None:
    if options.json:
        print_json(data)
    else:
        say(f"{sentence}\n")


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}"


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
