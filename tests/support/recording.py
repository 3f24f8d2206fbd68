"""A client that counts what scripts are given and what they return."""

from __future__ import annotations

from typing import Any

import redis
from redis.client import Pipeline

from workstealing.store.valkey_clients import redis_client


class Recording(redis.Redis):
    """Runs commands as redis-py's own client does, on the connections of another.

    Attributes: scripts: how many were run; most_keys, most_given, most_returned, longest_returned:
    of all scripts the most keys, the most other arguments, and the most values and the longest
    text, in bytes, in a reply (pipelines aside).
    """

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(connection_pool=redis_client(client).connection_pool)
        self.scripts = self.most_keys = self.most_given = self.most_returned = 0
        self.longest_returned = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command, and count."""
        reply = super().execute_command(*args, **options)
        if self.note(args):
            self.most_returned = max(self.most_returned, _values(reply))
            self.longest_returned = max(self.longest_returned, _longest(reply))
        return reply

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Any:
        """Return a pipeline whose scripts are counted too."""
        recording = self

        class Noted(Pipeline):
            def execute_command(self, *args: Any, **options: Any) -> Any:
                recording.note(args)
                return super().execute_command(*args, **options)

        return Noted(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def note(self, args: tuple[Any, ...]) -> bool:
        """Count a command if it is a script; return whether it is."""
        if args[0] not in ("EVALSHA", "EVAL"):
            return False
        self.scripts += 1
        self.most_keys = max(self.most_keys, int(args[2]))
        self.most_given = max(self.most_given, len(args) - 3 - int(args[2]))
        return True


def _values(reply: Any) -> int:
    return sum(_values(part) for part in reply) if isinstance(reply, list) else 1


def _longest(reply: Any) -> int:
    if isinstance(reply, list):
        return max(map(_longest, reply), default=0)
    return len(reply) if isinstance(reply, bytes) else 0
