"""Checks of `doctor` of one server: eviction, rights, sentinels, a cluster's state, field expiry.

A check that cannot know says so, because an "ok" that was guessed hides the fault.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from workstealing.cli.clients import FAULTS, said
from workstealing.cli.output import printable
from workstealing.errors import WorkStealingError
from workstealing.store.budget import Budget
from workstealing.store.connection import Command
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import SLOT_TAGS, key_slot
from workstealing.structures.access import ATTEMPT, Access, names_of
from workstealing.structures.layout import ask_server
from workstealing.structures.namespace import EMULATED, read_layout
from workstealing.structures.structure import FAULT, NOTE, OK, WARNING, Check, Structure
from workstealing.structures.volatile_hashes.commands import NATIVE_COMMANDS
from workstealing.structures.volatile_hashes.server_faults import reason_against

SECONDS = 2.0
FULL_SHARE = 0.9
LAG_SECONDS = 1.0
PROBE_FIELDS = 50
PROBE_MS = 50
_PROBE_KEEPS_SECONDS = 60
_POLL_SECONDS = 0.02
_MOST_ARGUMENTS = 5

DOCTOR = Access(
    keys=("{*}:ws:doctor:*",),
    commands=frozenset({"PING", "ROLE", "TIME", "INFO", "COMMAND|INFO", "SELECT"})
    | ATTEMPT
    | {"HLEN", "PEXPIRE", "UNLINK"},
    native=frozenset({"HSETEX"}),
)
"""The rights that the doctor needs besides those to the structures that it examines."""

OF_SENTINELS = Access(
    keys=(),
    commands=frozenset({"PING", "SENTINEL|MASTERS", "SENTINEL|GET-MASTER-ADDR-BY-NAME"}),
)
"""The rights of a user of the sentinels: they have other users than the servers."""

# The keys that each policy evicts.
_EVICTED = {
    "lru": "the least recently used",
    "lfu": "the least often used",
    "lrm": "the least recently changed",
    "random": "random ones",
    "ttl": "those that end soonest",
}
# The jobs can do without these.
_SPARED = frozenset({"INFO", "COMMAND|INFO", "ROLE", "PING", "SELECT", "MEMORY|USAGE"})
# Redis 6.2 has no such command; only the methods of the same names need them.
_SPARED |= {"EXPIRETIME", "PEXPIRETIME"}
_SPECIAL: Mapping[str, tuple[Any, ...]] = {
    "EVAL": ("EVAL", "return 0", 1, None),
    "EVALSHA": ("EVALSHA", "0" * 40, 1, None),
    "XREAD": ("XREAD", "STREAMS", None, "0"),
    "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "STREAMS", None, "0"),
}


def memory(info: Mapping[str, str]) -> Iterator[Check]:
    """Check the eviction policy and the memory, by INFO. No command."""
    policy = info.get("maxmemory_policy")
    if policy is None:
        yield Check(
            "eviction",
            NOTE,
            "the server does not tell its eviction policy: see to it that it is noeviction or a"
            " volatile- policy",
        )
    else:
        yield _eviction(policy)
    try:
        limit, used = int(info["maxmemory"]), int(info["used_memory"])
    except (KeyError, ValueError):
        yield Check("memory", NOTE, "the server does not tell how much memory it uses and may use")
        return
    if not limit:
        yield Check("memory", OK, f"{used / 1e6:,.1f} MB used, without a limit")
    else:
        level = WARNING if used >= FULL_SHARE * limit else OK
        yield Check("memory", level, f"{used / limit:.0%} of {limit / 1e6:,.1f} MB used")


def _eviction(policy: str) -> Check:
    scope, _, order = policy.partition("-")
    chosen = _EVICTED.get(order)
    if policy == "noeviction":
        return Check(
            "eviction",
            OK,
            "noeviction: when memory is full, writes are refused and jobs can still delete",
        )
    if scope == "volatile" and chosen:
        return Check(
            "eviction",
            OK,
            f"{policy} evicts {chosen} of the keys that have an EXPIRE: structures set none, so"
            " none of their keys is evicted (a volatile hash that you give an EXPIRE may be)",
        )
    if scope == "allkeys" and chosen:
        return Check(
            "eviction",
            FAULT,
            f"{policy} evicts {chosen} of all keys, so it may evict one part of a structure without"
            " the others, and locks before their deadline; use noeviction or a volatile- policy"
            " (structures refuse this one unless allow_eviction names it)",
        )
    return Check(
        "eviction",
        NOTE,
        f"the eviction policy {printable(policy)} is not known here: structures need one that"
        " leaves keys without an EXPIRE alone",
    )


def rights(
    what: str,
    structure: Any,
    access: Access | None,
    named: tuple[str, str] | None = None,
    *,
    about: str | None = None,
) -> Iterator[Check]:
    """Check whether the client's user may send what a structure and a job on it send.

    The commands are queued behind a MULTI, where the server judges each one, and never run.

    Arguments:
        what: the job or hook, for the checks.
        structure: or a job without one.
        access: what is needed, None if that is unknown.
        named: the name and the namespace in its keys, by default the structure's.
        about: it in a few words, by default its kind and name.

    Three round trips to each node, and up to two to learn whether the server keeps deadlines.
    """
    job_client = structure.job_client
    if about is None:
        about = f"{structure.kind} {printable(structure.name)}"
    if not isinstance(job_client, JobClient):
        return
    if access is None:
        yield Check(
            f"{what} rights", NOTE, f"no rule is known for {about}: its rights were not looked at"
        )
        return
    name, namespace = named or names_of(structure)
    denied: set[str] = set()
    closed: list[str] = []
    try:
        words = access.allowed(native=_is_native(structure)) - ATTEMPT
        for node in job_client.nodes():
            tag = SLOT_TAGS[job_client.a_slot_of_each().get(node, 0)].decode()
            keys = access.samples(name, namespace, tag)
            here = [each for each in keys if job_client.node_of(key_slot(each.encode())) == node]
            if here:
                more, others = _denied(job_client, node, words, here)
                denied |= more
                closed += others
    except (WorkStealingError, *FAULTS) as error:
        yield Check(
            f"{what} rights",
            NOTE,
            f"it is not known whether the user may do what {about} needs: {said(error)}",
        )
        return
    hint = "`workstealing acl` prints the rule that it needs"
    if needed := sorted(denied - _SPARED):
        yield Check(
            f"{what} rights",
            FAULT,
            f"the server refuses {', '.join(needed)} to the user, which {about} needs: {hint}",
        )
    elif closed:
        yield Check(
            f"{what} rights",
            FAULT,
            f"the server refuses keys of {about} to the user, such as {printable(closed[0])}:"
            f" {hint}",
        )
    else:
        beside = " (which keys of your own it uses is not known here)" if access.users_keys else ""
        yield Check(f"{what} rights", OK, f"the user may do all that {about} needs{beside}")
    if spared := sorted(denied & _SPARED):
        yield Check(
            f"{what} rights",
            NOTE,
            f"the server refuses {', '.join(spared)} to the user; {about} works without",
        )


def _is_native(structure: Any) -> bool:
    """Say whether a namespace uses the server's own hash fields, or will from its first use on."""
    kind = structure.kind if isinstance(structure, Structure) else ""
    if kind != "volatile hashes":
        return False
    try:
        layout = structure.inspect(read_layout(structure.names), SECONDS)
        if layout is not None:
            return bool(layout.backend != EMULATED)
        steps = ask_server(structure.names.layout, NATIVE_COMMANDS)
        facts = structure.inspect(steps, SECONDS)
    except ResponseError as error:
        if not (_is_denial(error) or _is_closed(error) or "this command" in str(error)):
            raise
        # A question that the user may not ask, in a script too, is told as a refused command.
        return False
    return facts.known.issuperset(NATIVE_COMMANDS) and reason_against(facts.info) is None


def _denied(
    job_client: JobClient, node: Node, words: Collection[str], keys: Sequence[str]
) -> tuple[set[str], list[str]]:
    """Return the commands and the keys that a node refuses to the user. Raises: ResponseError."""
    key = keys[-1]
    denied: set[str] = set()
    budget = Budget.whole(SECONDS)
    with job_client.connection(node) as connection:
        try:
            first: list[Command] = [("WATCH", key), ("UNWATCH",), ("MULTI",), ("EXEC",)]
            for command, reply in zip(first, connection.call(first, budget), strict=True):
                if _is_denial(reply):
                    denied.add(str(command[0]))
            (begun,) = connection.call([("MULTI",)], budget)
            if isinstance(begun, Exception):
                if denied:
                    return denied, []
                raise ResponseError(f"MULTI is refused: {begun}")
            asked = [(word, each) for word in sorted(words) for each in _forms(word, key)]
            replies = connection.call([each for _, each in asked], budget)
            for (word, _), reply in zip(asked, replies, strict=True):
                if _is_denial(reply):
                    denied.add(word)
            probes: list[Command] = [("EVAL", "return 0", 1, each) for each in keys]
            replies = connection.call(probes, budget)
        finally:
            # The server forgets the queued commands with the connection.
            connection.disconnect()
    return denied, [each for each, reply in zip(keys, replies, strict=True) if _is_closed(reply)]


def _forms(word: str, key: str) -> Iterator[Command]:
    """Yield a command with some numbers of arguments: the server judges only a right number."""
    if word in _SPECIAL:
        yield tuple(key if each is None else each for each in _SPECIAL[word])
        return
    for number in range(_MOST_ARGUMENTS + 1):
        yield (*word.split("|"), *(key,) * number)


def _is_denial(reply: Any) -> bool:
    """Say whether a reply refuses a command to the user, or does not know the command."""
    text = str(reply)
    if isinstance(reply, NoPermissionError) or "NOPERM" in text:
        return not _is_closed(reply)
    return isinstance(reply, Exception) and "unknown command" in text.lower()


def _is_closed(reply: Any) -> bool:
    """Say whether a reply refuses a key to the user."""
    return isinstance(reply, Exception) and "permissions to access " in str(reply)


def fleet(name: str, whole: Any, *, is_carried: bool) -> Check:
    """Describe a fleet, and say whether its keys are on the move. No command.

    Arguments:
        name: of the first job on it.
        whole: the fleet.
        is_carried: whether a FleetRebalance is installed for it.
    """
    nodes = ", ".join(printable(each) for each in whole.nodes)
    told = f"job {printable(name)} serves {len(whole.nodes)} nodes: {nodes}"
    if not whole.former_nodes:
        return Check("fleet", OK, told)
    moving = f"{told}; keys move to new homes, from {', '.join(map(printable, whole.former_nodes))}"
    if is_carried:
        return Check("fleet", NOTE, f"{moving}: FleetRebalance carries those that nobody uses")
    return Check(
        "fleet",
        WARNING,
        f"{moving}: install FleetRebalance for each structure, or keys that nobody uses stay there",
    )


def sentinels(job_client: JobClient) -> Iterator[Check]:
    """Check the sentinels of a client: who answers, and whether they agree. Two round trips each.

    A client of no sentinels has no check.
    """
    answers = job_client.ask_sentinels()
    if not answers:
        return
    masters = set()
    for address, reply in answers:
        if isinstance(reply, Exception):
            yield Check("sentinel", WARNING, f"{address} cannot be asked: {said(reply)}")
        else:
            masters.add(reply)
            yield Check("sentinel", OK, f"{address} names {reply[0]}:{reply[1]} as the master")
    if len(masters) > 1:
        yield Check("sentinels", WARNING, "they disagree, as they do during a failover: look again")
    elif not masters:
        yield Check("sentinels", FAULT, "no sentinel names a master: the jobs cannot find one")


def cluster(job_client: JobClient, node: Node) -> Iterator[Check]:
    """Check what a node says of its cluster. One round trip."""
    (reply,) = job_client.call(node, [("CLUSTER", "INFO")], Budget.whole(SECONDS))
    where = f"{node[0]}:{node[1]}" if node else "the node"
    if isinstance(reply, Exception):
        yield Check(
            "cluster", NOTE, f"{where} does not tell the state of its cluster: {said(reply)}"
        )
        return
    facts = fields(reply)
    state, covered = facts.get("cluster_state", "?"), facts.get("cluster_slots_ok", "?")
    level = OK if (state, covered) == ("ok", "16384") else FAULT
    yield Check(
        "cluster",
        level,
        f"{where} says: state {printable(state)}, {printable(covered)} of 16384 slots are served by"
        f" {printable(facts.get('cluster_size', '?'))} masters",
    )


def fields(reply: Any) -> dict[str, str]:
    """Return the pairs of an INFO, or of a reply like it."""
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {key: value for key, _, value in pairs}


def field_expiry(job_client: JobClient, node: Node) -> Check:
    """Measure how late the server itself removes expired fields, by a few in a key of the doctor's.

    The key ends by itself after a minute, if the doctor is killed. Returns: the check. About a
    second of round trips.
    """
    tag = SLOT_TAGS[job_client.a_slot_of_each().get(node, 0)].decode()
    key = f"{{{tag}}}:ws:doctor:{random.getrandbits(64):016x}"
    values = [each for number in range(PROBE_FIELDS) for each in (f"f{number}", "v")]
    budget = Budget.whole(SECONDS)
    made = job_client.call(
        node,
        [
            ("HSETEX", key, "PX", PROBE_MS, "FIELDS", PROBE_FIELDS, *values),
            ("PEXPIRE", key, 1000 * _PROBE_KEEPS_SECONDS),
        ],
        budget,
    )
    refused = next((each for each in made if isinstance(each, Exception)), None)
    if refused is not None:
        job_client.call(node, [("UNLINK", key)], budget)
        return Check(
            "field expiry", NOTE, f"its lag could not be measured, and is unknown: {said(refused)}"
        )
    due = time.monotonic() + PROBE_MS / 1000
    left: Any = PROBE_FIELDS
    while time.monotonic() < due + LAG_SECONDS:
        time.sleep(_POLL_SECONDS)
        (left,) = job_client.call(node, [("HLEN", key)], Budget.whole(SECONDS))
        if isinstance(left, Exception) or not left:
            break
    lag = max(0.0, time.monotonic() - due)
    job_client.call(node, [("UNLINK", key)], Budget.whole(SECONDS))
    if isinstance(left, Exception):
        return Check(
            "field expiry", NOTE, f"its lag could not be measured, and is unknown: {said(left)}"
        )
    if left:
        return Check(
            "field expiry",
            WARNING,
            f"{left} of {PROBE_FIELDS} expired fields were still there after {lag:.1f} s: the"
            " server's own expiry of fields lags, so memory is freed late (readers see none of"
            " them)",
        )
    return Check("field expiry", OK, f"the server removed expired fields within {lag:.2f} s")
