"""One process of an installed release: does what it is told on every structure, a line each.

It runs in an environment of its own, where this package's release or another one is installed. A
line is a JSON list of an operation's name and its arguments; the answer is JSON as well. Names that
have changed between releases are tried in turn.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import redis

import workstealing
from workstealing import structures


def named(thing: Any, *names: str) -> Any:
    """Return the first of the methods that this release has."""
    return next(getattr(thing, name) for name in names if hasattr(thing, name))


class Driver:
    """The operations, on the structures of one server.

    Arguments:
        options: of the client.
    """

    def __init__(self, port: int, **options: Any) -> None:
        client = redis.Redis(port=port, **options)
        self.hashes = structures.VolatileHashes(client, namespace="h", backend="emulated")
        self.keys = structures.DurableKeys(client, namespace="k")
        self.tracked = structures.TrackedSet(client, "tracked")
        self.ick = structures.Ick(client, "ick")
        # One that is there may have been resized.
        self.sharded = structures.ShardedIck(
            client, "sharded", *([] if client.keys("*sharded*") else [4])
        )
        self.queue = structures.ShuffleQueue(client, "queue")
        store = structures.RedisStore(client)
        self.due = structures.TimeShardQueue(store, "due", 4, 3600)
        self.log = structures.Log(client, "log", 10)

    def place(self) -> str:
        return str(workstealing.__file__)

    def hash_set(self, key: str, field: str, value: str, at: int) -> None:
        self.hashes.hsetex(key, mapping={field: value}, exat=at)

    def hash_get(self, key: str) -> Any:
        found = sorted((k.decode(), v.decode()) for k, v in self.hashes.hgetall(key).items())
        times = self.hashes.hexpiretime(key, *(field for field, _ in found)) if found else []
        return [[*pair, at] for pair, at in zip(found, times, strict=True)]

    def hash_delete(self, key: str, field: str) -> Any:
        return self.hashes.hdel(key, field)

    def key_set(self, key: str, value: str, seconds: int) -> None:
        self.keys.set(key, value, ex=seconds)

    def key_get(self, key: str) -> Any:
        found: Any = self.keys.get(key)
        return None if found is None else found.decode()

    def acquire(self, key: str) -> Any:
        return self.keys.acquire(key, 60)

    def release(self, key: str, token: int) -> Any:
        return self.keys.release(key, token)

    def track(self, *ids: str) -> Any:
        return self.tracked.track(ids)

    def untrack(self, *ids: str) -> Any:
        return self.tracked.untrack(ids)

    def is_tracked(self, one: str) -> Any:
        return bool(self.tracked.is_tracked(one))

    def ick_add(self, scores: dict[str, float]) -> None:
        self.ick.add(scores)

    def ick_take(self, n: int) -> Any:
        batch = self.ick.reserve(n)
        members = [_text(member) for member, _ in batch]
        if members:
            named(self.ick, "ack", "commit")(*members)
        return members

    def sharded_add(self, scores: dict[str, float]) -> None:
        self.sharded.add(scores)

    def sharded_take(self) -> Any:
        taken: list[str] = []
        with self.sharded.lease("driver", 60.0) as one:
            members = [_text(member) for member, _ in one.reserve(100)]
            if members:
                named(one, "ack", "commit")(*members)
            taken += members
        return taken

    def write(self, tenant: str, n: int) -> None:
        self.queue.write(tenant, {"n": n})

    def read(self) -> Any:
        messages = self.queue.read_many("group", "driver", 100)
        if messages:
            self.queue.ack(*messages)
        return [int(_fields(message)["n"]) for message in messages]

    def put(self, message: str) -> Any:
        return self.due.put(message, 1.0)

    def take(self) -> Any:
        taken = self.due.take_many("driver", 100, 60.0, True)
        if taken:
            named(self.due, "ack", "finish")(*taken)
        return [_text(each.message) for each in taken]

    def append(self, *entries: str) -> Any:
        return self.log.append(*entries)

    def entries(self, first: int) -> Any:
        return [_text(each) for each in self.log.read(first, 1000)]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _fields(message: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in message.fields.items()}


def main() -> None:
    """Answer each line of the input; the arguments are a port, and the protocol if it matters."""
    port, *protocol = map(int, sys.argv[1:])
    driver = Driver(port, **({"protocol": protocol[0]} if protocol else {}))
    for line in sys.stdin:
        name, *args = json.loads(line)
        try:
            answer = {"reply": getattr(driver, name)(*args)}
        except Exception as error:  # noqa: BLE001 - the test reads it
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
