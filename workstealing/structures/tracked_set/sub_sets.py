"""Asks sub-sets of a tracked set on one-attempt connections: some, or all page by page.

A scan is no snapshot. A scan finds each id that stays tracked meanwhile, some ids twice. An id that
is added or removed meanwhile may be found or missed. Scans are for exports, not for slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from workstealing.store.budget import Budget
from workstealing.store.connection import checked
from workstealing.store.job_client import JobClient, Node
from workstealing.store.keys import key_slot
from workstealing.store.paging import paged
from workstealing.structures.tracked_set.layout import MOST_SUB_SETS, TrackedSetNames, text

SUB_SETS_A_CALL, IDS_A_PAGE = 32, 500
# An export waits for a busy server, unlike a slice.
TIMEOUT_SECONDS = 30.0


def ask_sub_sets(
    job_client: JobClient,
    names: TrackedSetNames,
    commands: Mapping[int, tuple[Any, ...]],
    budget: Budget,
) -> dict[int, Any]:
    """Send one command to each of several sub-sets; return the replies by sub-set.

    Raises: LayoutError for a foreign key in a sub-set's place; any other error reply, as its own
    error; OutOfTime; connection faults. One round trip to each of their nodes.
    """
    nodes: dict[Node, list[int]] = {}
    for sub_set in commands:
        nodes.setdefault(job_client.node_of(names.slot(sub_set)), []).append(sub_set)
    replies: dict[int, Any] = {}
    for node, sub_sets in nodes.items():
        with names.asked():
            answers = checked(job_client.call(node, [commands[each] for each in sub_sets], budget))
        replies.update(zip(sub_sets, answers, strict=True))
    return replies


def generations(
    job_client: JobClient, names: TrackedSetNames, sub_sets: Sequence[int], budget: Budget
) -> dict[int, bytes]:
    """Return the generations of sub-sets, b"" for a sub-set without one.

    Raises: LayoutError for a foreign mark; as `ask_sub_sets`. One round trip to each node.
    """
    looks = {each: ("HMGET", names.keys(each)[1], "mark", "generation") for each in sub_sets}
    found: dict[int, bytes] = {}
    for sub_set, (mark, generation) in ask_sub_sets(job_client, names, looks, budget).items():
        names.check_mark(sub_set, mark)
        found[sub_set] = generation or b""
    return found


def laid_out_sub_sets(job_client: JobClient, names: TrackedSetNames) -> int | None:
    """Return a tracked set's number of sub-sets; None if nobody has used it yet.

    Arguments:
        names: of the tracked set, with any number of sub-sets.

    Raises: LayoutError for a foreign or newer layout. One round trip; nothing is written.
    """
    node = job_client.node_of(key_slot(names.layout))
    (reply,) = job_client.call(node, [("HGETALL", names.layout)], Budget(None, TIMEOUT_SECONDS))
    if isinstance(reply, ResponseError):
        if "WRONGTYPE" not in str(reply):
            raise reply
        # Not a hash: it is handled like a hash that is no layout.
        reply = [b"structure", b"something else"]
    if not reply:
        return None
    written = dict(zip(map(text, reply[::2]), map(text, reply[1::2]), strict=True))
    sub_sets = written.get("sub_sets", "")
    is_usable = sub_sets.isdigit() and 1 <= int(sub_sets) <= MOST_SUB_SETS
    known = TrackedSetNames(names.key, int(sub_sets)) if is_usable else names
    known.check(reply)
    return known.sub_sets


def find(
    job_client: JobClient, names: TrackedSetNames, ids: Sequence[bytes]
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield those of some ids that are tracked, as two lists of the same length: as `scan` does.

    Raises: LayoutError for a foreign key in a sub-set's place; connection faults. One round trip to
    each node for each 500 ids.
    """
    for start in range(0, len(ids), IDS_A_PAGE):
        groups = names.grouped(ids[start : start + IDS_A_PAGE])
        asked = {
            each: ("SMISMEMBER", names.keys(each)[0], *group) for each, group in groups.items()
        }
        replies = ask_sub_sets(job_client, names, asked, Budget(None, TIMEOUT_SECONDS))
        found = [
            (sub_set, each)
            for sub_set, group in groups.items()
            for each, is_there in zip(group, replies[sub_set], strict=True)
            if is_there
        ]
        yield [sub_set for sub_set, _ in found], [each for _, each in found]


def scan(
    job_client: JobClient, names: TrackedSetNames, sub_sets: Sequence[int]
) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield ids as two lists of the same length: the sub-sets, and their ids.

    Arguments:
        sub_sets: their numbers.

    Raises: LayoutError for a foreign key in a sub-set's place; connection faults. One round trip
    for some dozen pages of about 500 ids.
    """
    by_node: dict[Node, list[int]] = {}
    for sub_set in sub_sets:
        by_node.setdefault(job_client.node_of(names.slot(sub_set)), []).append(sub_set)
    for node, its_sub_sets in by_node.items():

        def ask(asked: list[tuple[int, bytes]], node: Node = node) -> list[Any]:
            keys = [(names.keys(sub_set)[0], cursor) for sub_set, cursor in asked]
            commands = [("SSCAN", *each, "COUNT", IDS_A_PAGE) for each in keys]
            replies: list[Any] = job_client.call(node, commands, Budget(None, TIMEOUT_SECONDS))
            with names.asked():
                return checked(replies)

        for pages in paged(its_sub_sets, SUB_SETS_A_CALL, ask):
            numbers: list[int] = []
            ids: list[bytes] = []
            for sub_set, page in pages:
                found = list(dict.fromkeys(page))
                ids += found
                numbers += [sub_set] * len(found)
            yield numbers, ids
