"""What a log's groups cost: their reads with ack, and an append beside them, idle or woken.

The reference of a read and its ack is XREADGROUP and XACK of a stream's group; that of an append is
one to a log that has no groups, or only those in which somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from figures import Figure, counted
from log_sides import FIELD, Comparison, Meter

from workstealing.store.operations import drive
from workstealing.structures import Log

MANY, FEW = 2_000, 10
APPENDS = 50
ROUNDS = 20
LONGEST_OF = 10
AT_MOST = 1.2
# How many reads a round has, by how many entries each of them asks for.
READS = {1: 50, 100: 10}


def group_costs(client: Any, meter: Meter) -> list[Figure]:
    """Measure reads with ack, and appends beside groups that are idle, or that all are woken."""
    return [
        *(figure for count in READS for figure in _reads(client, meter, count)),
        *_idle(client, meter, waited_in=0),
        *_idle(client, meter, waited_in=FEW),
        _longest(client),
    ]


def _reads(client: Any, meter: Meter, count: int) -> list[Figure]:
    """Compare reads of so many new entries, all of them acknowledged at once, by entry."""
    reads, entry = READS[count], b"x" * 100
    log: Any = Log(client, "read")
    for _ in range(-(-reads * count * (ROUNDS + 1) // 1_000)):
        log.append(*[entry] * 1_000)
        pipeline = client.pipeline(transaction=False)
        for _ in range(1_000):
            pipeline.xadd("stream", {FIELD: entry})
        pipeline.execute()
    group = log.group("group", ack=True)
    group.stats()
    client.xgroup_create("stream", "group", id="0")

    def ours() -> None:
        for _ in range(reads):
            if group.ack(*group.read(count)) != count:
                raise AssertionError("not all entries were read and acknowledged")

    def theirs() -> None:
        for _ in range(reads):
            ((_, found),) = client.xreadgroup("group", "member", {"stream": ">"}, count=count)
            if client.xack("stream", "group", *(each for each, _ in found)) != count:
                raise AssertionError("not all entries were read and acknowledged")

    costs = Comparison(meter, ours, theirs, reads * count, ROUNDS)
    log.delete()
    client.delete("stream")
    return costs.costs(f"log_group_read_{count}", f"XREADGROUP and XACK, {count}")


def _log(client: Any, name: str, groups: int, waited_in: int) -> tuple[Any, Callable[[], None]]:
    """Return a log with groups, and what appends to it, with a member in line in some of them."""
    log: Any = Log(client, name)
    members = [log.group(f"group {each}", start="last") for each in range(groups)]
    for member in members:
        member.stats()

    def run() -> None:
        for member in members[:waited_in]:
            _wait_in(member)
        for _ in range(APPENDS):
            log.append(b"x" * 100)

    return log, run


def _wait_in(member: Any) -> None:
    """Let a member look that will wait, as `read` with block does."""
    member.seek("last")
    drive(member.client, member.look_steps(1, b"", "a member", True))


def _idle(client: Any, meter: Meter, waited_in: int) -> list[Figure]:
    log, ours = _log(client, "many", MANY, waited_in)
    other, theirs = _log(client, "few", waited_in, waited_in)
    costs = Comparison(meter, ours, theirs, APPENDS, ROUNDS)
    log.delete()
    other.delete()
    return costs.costs(
        f"log_append_{MANY}_groups_{waited_in}_waited_in",
        f"a log with {waited_in} groups",
        AT_MOST,
    )


def _longest(client: Any) -> Figure:
    """Return for how long one script holds up the server where members of all groups are woken."""
    log: Any = Log(client, "woken")
    members = [log.group(f"group {each}", start="last") for each in range(MANY)]
    kept = client.config_get("slowlog-*")
    client.config_set("slowlog-max-len", 1_000)
    longest = []
    for _ in range(LONGEST_OF):
        for member in members:
            _wait_in(member)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        log.append(b"x" * 100)
        client.config_set("slowlog-log-slower-than", -1)
        longest.append(max(each["duration"] for each in client.slowlog_get(1_000)))
        if any(not client.exists(member.keys.turns) for member in members):
            raise AssertionError("not everybody who waits was woken")
    for name, value in kept.items():
        client.config_set(name, value)
    log.delete()
    return counted(
        f"log_append_{MANY}_groups_woken_longest_ms",
        round(median(longest) / 1000, 2),
        "counted by the server's SLOWLOG",
    )
