"""Two ways of one call, a short one and the full one, on two databases in the same state.

A script with a short path for the usual call has one effect by either path. `TwoWays` prepares one
state in two databases of a server, runs each way in one of them at the same frozen moment, and
compares the replies and all that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from support.servers import AnyServer
from workstealing.store.scripts import load

_TIME = "redis.call('TIME')"
# Lives that are compared differ by more than the moment at which they are read.
_APART_MS = 60_000
_READ: dict[bytes, Callable[[Any, bytes], Any]] = {
    b"string": lambda client, key: client.get(key),
    b"hash": lambda client, key: client.hgetall(key),
    b"list": lambda client, key: client.lrange(key, 0, -1),
    b"set": lambda client, key: client.smembers(key),
    b"zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    b"stream": lambda client, key: client.xrange(key),
}


def frozen(name: str, at_ms: int) -> str:
    """Return the text of a script for which it is always the same moment.

    Arguments:
        name: of the script.
        at_ms: the moment, in ms since the epoch.
    """
    body = load(name).body
    assert _TIME in body, f"{name} reads no clock"
    seconds, ms = divmod(at_ms, 1000)
    return body.replace(_TIME, f"{{'{seconds}','{1000 * ms}'}}")


class TwoWays:
    """Two databases of one server, to which the same happens but for the way of one call."""

    def __init__(self, server: AnyServer) -> None:
        assert server.is_real or not server.is_cluster
        self.clients = (server.client(db=0), server.client(db=1))
        self._is_real = server.is_real

    def prepare(self, commands: Sequence[tuple[Any, ...]]) -> None:
        """Wipe both databases, and run the same commands in each."""
        for client in self.clients:
            with client.pipeline(transaction=False) as pipeline:
                pipeline.execute_command("FLUSHDB")
                for each in commands:
                    pipeline.execute_command(*each)
                pipeline.execute()

    @contextmanager
    def full_memory(self, is_full: bool = True) -> Iterator[None]:
        """Let the server refuse all that needs memory while the block lasts."""
        if not (is_full and self._is_real):
            yield
            return
        self.clients[0].config_set("maxmemory", 1)
        try:
            yield
        finally:
            self.clients[0].config_set("maxmemory", 0)

    def run(
        self,
        keys: Sequence[bytes],
        short: tuple[str, Sequence[Any]],
        full: tuple[str, Sequence[Any]],
    ) -> list[Any]:
        """Return the replies to both ways; each is a script's text and its arguments."""
        pairs = zip(self.clients, (short, full), strict=True)
        return [_reply(client, text, keys, args) for client, (text, args) in pairs]

    def left(self) -> list[dict[bytes, Any]]:
        """Return all that each database holds: by key its type, content and time to live."""
        return [_content(client) for client in self.clients]


def _reply(client: Any, text: str, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
    try:
        return client.eval(text, len(keys), *keys, *args)
    except ResponseError as error:
        return type(error), str(error)


def _content(client: Any) -> dict[bytes, Any]:
    keys = sorted(client.keys("*"))
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.type(key)
            pipeline.pttl(key)
        facts = pipeline.execute()
        kinds, lives = facts[::2], facts[1::2]
        for key, kind in zip(keys, kinds, strict=True):
            _READ[kind](pipeline, key)
        contents = pipeline.execute()
    return {
        key: (kind, content, left if left < 0 else round(left / _APART_MS))
        for key, kind, content, left in zip(keys, kinds, contents, lives, strict=True)
    }
