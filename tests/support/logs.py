"""What tests share in which work on logs breaks off: the keys of a whole log, and their content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import redis

from workstealing.jobs import LogCompactor, LogTrimmer
from workstealing.recruiting import Slice
from workstealing.structures import Log
from workstealing.structures.log.base import LogNames
from workstealing.structures.log.blocks import entries_of, head_of

BLOCK = 4
LATE_MS = 3_600_000


def entries_from(start: int, number: int) -> list[bytes]:
    """Return entries that say which offset they are to have."""
    return [b"entry %d of those that fill the log" % each for each in range(start, start + number)]


def lasting_keys(client: Any) -> set[bytes]:
    """Return all keys but receipts of reads, which the server removes by itself."""
    found = set()
    for key in client.scan_iter(count=1000):
        if key.partition(b"}/")[2].startswith(b"read."):
            assert client.pttl(key) != -1, key
        else:
            found.add(key)
    return found


def keys_by_log(nodes: Iterable[redis.Redis], names: Iterable[str]) -> dict[str, set[bytes]]:
    """Return all keys on some nodes by log. Whatever belongs to none of them fails."""
    bases = {LogNames(name).base: name for name in names}
    found: dict[str, set[bytes]] = defaultdict(set)
    for node in nodes:
        for key in lasting_keys(node):
            head, braces, _ = key.partition(b"}/")
            assert head + braces in bases, key
            found[bases[head + braces]].add(key)
    return found


def check_whole(client: Any, name: str, present: set[bytes]) -> tuple[int, int, int]:
    """See that of a log exactly those keys are there that its catalogue names, and fit together.

    Arguments:
        present: the keys of this log.

    Returns: first, next and kept, all 0 where there is no log.
    """
    keys = LogNames(name)
    meta = client.hgetall(keys.meta)
    if not meta:
        assert present == set()
        return 0, 0, 0
    block, end = int(meta[b"block"]), int(meta[b"next"])
    first, kept = int(meta[b"first"]), int(meta[b"kept"])
    assert 0 <= kept * block <= first <= end
    blocks = dict(enumerate(keys.blocks(kept, -(-end // block) - kept), kept))
    groups = [each[6:] for each in meta if each.startswith(b"group:")]
    # Only producers that can be found have ids, and each of them has.
    producers = client.zrange(keys.producers, 0, -1)
    assert not producers or int(meta[b"ids"])
    optional = {keys.full, keys.raw, keys.waiting}
    optional |= {key for group in groups for key in keys.group(group).all}
    needed = {keys.meta, *blocks.values(), *(keys.group(group).state for group in groups)}
    if end:
        needed |= {keys.news}
        assert client.xrevrange(keys.news, count=1)[0][0] == b"%d-0" % end
    if blocks:
        needed |= {keys.times}
    if producers:
        needed |= {keys.producers, *map(keys.ids, producers)}
    assert needed <= present, needed - present
    assert present <= needed | optional, present - needed - optional
    full, raw, times = (
        {int(each) for each in client.zrange(key, 0, -1)}
        for key in (keys.full, keys.raw, keys.times)
    )
    assert times == set(blocks)
    lists, strings = set(), set()
    for number, key in blocks.items():
        entries = min(block, end - number * block)
        if client.type(key) == b"list":
            assert client.llen(key) == entries
            lists |= {number} if entries == block else set()
        else:
            content = client.get(key)
            assert len(entries_of(content)) == entries == block
            strings |= {number} if head_of(content).codec == "raw" else set()
    assert full == lists
    assert raw <= strings
    return first, end, kept


def check_entries(client: Any, name: str, expected: Sequence[bytes]) -> None:
    """See that each entry stands at its offset, once; evicted ones and no others are missing."""
    log = Log(client, name, BLOCK)
    info, found = log.read_range(0, len(expected) + 10)
    assert found == [None] * info.first + list(expected[info.first : info.last + 1])


def keep_up(client: Any, names: Sequence[str], **bounds: Any) -> None:
    """Let new processes' jobs do all that there is to be done."""
    logs = [Log(client, name, BLOCK) for name in names]
    for job in (LogCompactor(logs, 10, cold=0), LogTrimmer(logs, 10, **bounds)):
        for part in job.parts(1):
            worker = job.for_part(part)
            while not worker.is_drained:
                worker.perform(Slice(10, 10.0))
        assert job.backlog().count == 0
