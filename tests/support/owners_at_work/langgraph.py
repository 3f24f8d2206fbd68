"""LangGraph's checkpointer by its layout: the package needs RediSearch, which no test server has.

Strings stand for its JSON documents, as the rule does not read them. The order of the writes is
that of `put`, `put_writes` and `delete_thread` of langgraph-checkpoint-redis 0.5.2.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from support.killed_journal import Work
from support.owners_at_work.owner import DAY, Owner
from workstealing.jobs.leftovers import Leftovers
from workstealing.jobs.library_leftovers import OrphanedWrites


class LangGraph(Owner):
    """The checkpointer."""

    name = "langgraph"

    def jobs(self, client: Any) -> list[Any]:
        """Return the rule's job, for strings."""
        return [Leftovers(client, [OrphanedWrites(DAY, "string")], name="lg", dry_run=False)]

    def operation(self, role: str, work: Work) -> Callable[[], object]:
        """Put a checkpoint and its writes, in either order, or delete a thread."""
        client = self.connected()
        mine: list[list[str]] = []

        def put() -> None:
            number, task = uuid.uuid4(), uuid.uuid4()
            rest = f"{work.name()}:__empty__:{number}"
            checkpoint = f"checkpoint:{rest}"
            writes = [f"checkpoint_write:{rest}:{task}:{n}" for n in range(3)]
            is_late = work.draw.random() < 0.5
            if not is_late:
                client.set(checkpoint, "{}")
            for each in writes:
                client.set(each, str(number))
            client.zadd(f"write_keys_zset:{rest}", dict.fromkeys(writes, 0))
            if is_late:
                client.set(checkpoint, "{}")
            for each in writes:
                work.journal.live(each, str(number))
            mine.append([checkpoint, f"write_keys_zset:{rest}", *writes])

        def delete() -> None:
            checkpoint, register, *writes = mine.pop(work.draw.randrange(len(mine)))
            for each in writes:
                work.journal.over(each)
            client.delete(checkpoint)
            for each in writes:
                client.delete(each)
            client.delete(register)

        return lambda: delete() if mine and work.draw.random() < 0.5 else put()

    def missing(self, client: Any, items: Mapping[str, str]) -> list[str]:
        """Return the writes of checkpoints that are not there, or not in their register."""
        absent = []
        for name, number in items.items():
            register = f"write_keys_zset:{name.removeprefix('checkpoint_write:').rsplit(':', 2)[0]}"
            is_there = client.get(name) == number.encode()
            if not is_there or client.zscore(register, name) is None:
                absent.append(name)
        return absent

    def left(self, client: Any) -> list[str]:
        """Return the writes without a checkpoint."""
        left = []
        for key in client.scan_iter(match="checkpoint_write:*", count=1_000):
            rest = key.removeprefix(b"checkpoint_write:").rsplit(b":", 2)[0]
            if not client.exists(b"checkpoint:" + rest):
                left.append(f"{key!r}")
        return left
