"""Two databases of one server in the same state: a short path and the full one do the same there.

A test fills both by the same commands, does a thing in the one by the short path and in the other
by the full one, and compares what both say and what both leave. The fixture `twins` gives all
scripts a clock that stands still, at the moment that `Twins.prepare` is told; a script that an
object has loaded before keeps the server's clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from support.servers import AnyServer
from workstealing.store import scripts
from workstealing.store.scripts import Script

EVERYWHERE = ("redis7", "redis62", "redis82", "valkey9", "fakeredis_server")
CLOCK = "the clock of this test"
_TIME = "redis.call('TIME')"
# A time to live is compared in minutes, because a moment passes between the two databases.
_CONTENTS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, ''
  if kind == 'string' then
    content = redis.call('GET', key)
  elseif kind == 'list' then
    content = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then
    content = redis.call('HGETALL', key)
  elseif kind == 'zset' then
    content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then
    content = redis.call('SMEMBERS', key)
    table.sort(content)
  elseif kind == 'stream' then
    local about, last = redis.call('XINFO', 'STREAM', key)
    for i = 1, #about, 2 do
      last = about[i] == 'last-generated-id' and about[i + 1] or last
    end
    content = { last, redis.call('XRANGE', key, '-', '+') }
  end
  found[#found + 1] = { key, kind, math.floor((redis.call('PTTL', key) + 30000) / 60000), content }
end
return found
"""


@cache
def _frozen(name: str, clock_shift_ms: int) -> Script:
    script = Script(name, clock_shift_ms)
    script.body = script.body.replace(_TIME, f"redis.call('LRANGE', '{CLOCK}', 0, 1)")
    script.sha = hashlib.sha1(script.body.encode(), usedforsecurity=False).hexdigest()
    return script


class Twins:
    """Two databases that are kept alike; `short` and `full` are their clients.

    Attribute: is_real: whether the server is no emulation.

    Arguments:
        server: no cluster.
    """

    def __init__(self, server: AnyServer) -> None:
        self.short, self.full = server.client(db=0), server.client(db=1)
        self.is_real = server.is_real

    def prepare(self, commands: Sequence[tuple[Any, ...]], at_us: int) -> None:
        """Empty both, run the same commands in both, and set the clock.

        Arguments:
            at_us: microseconds since the epoch.
        """
        for client in (self.short, self.full):
            pipeline = client.pipeline(transaction=False)
            pipeline.flushdb()
            pipeline.rpush(CLOCK, *divmod(at_us, 1_000_000))
            for each in commands:
                pipeline.execute_command(*each)
            pipeline.execute(raise_on_error=False)

    def contents(self) -> tuple[dict[bytes, Any], dict[bytes, Any]]:
        """Return what both hold, by key: the type, minutes to live (0 for none), the content."""
        first, second = map(_contents, (self.short, self.full))
        return first, second

    @contextmanager
    def full_memory(self, is_full: bool) -> Iterator[None]:
        """Let a real server refuse all that needs memory while the block lasts, if `is_full`."""
        if is_full and self.is_real:
            self.short.config_set("maxmemory", 1)
        try:
            yield
        finally:
            if is_full and self.is_real:
                self.short.config_set("maxmemory", 0)

    def check(
        self,
        short: Callable[[], object],
        full: Callable[[], object],
        about: object,
        but: Sequence[bytes] = (),
    ) -> Any:
        """Do a thing by both paths, compare what is said and what is left, and return the former.

        Arguments:
            about: the state, for the message.
            but: keys that may be left differently.

        An error is returned as its class and text.
        """
        said = (_said(short), _said(full))
        assert said[0] == said[1], f"said differently: {about}"
        left = self.contents()
        for key in but:
            for each in left:
                each.pop(key, None)
        changed = {key for key in left[0].keys() | left[1] if left[0].get(key) != left[1].get(key)}
        differences = [(key, left[0].get(key), left[1].get(key)) for key in sorted(changed)]
        assert not differences, f"left differently after {said[0]}: {about}: {differences}"
        return said[0]


@pytest.fixture
def twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Twins]:
    """Yield the twins on a server: the test's own parameter names the server's fixture."""
    monkeypatch.setattr(scripts, "_loaded", _frozen)
    twins = Twins(request.getfixturevalue(request.param))
    yield twins
    for client in (twins.short, twins.full):
        client.flushdb()


def _said(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is compared
        return type(error), str(error)


def _contents(client: Any) -> dict[bytes, Any]:
    return {
        key: (kind, minutes, _by_name(content) if kind == b"hash" else content)
        for key, kind, minutes, content in client.eval(_CONTENTS, 0)
    }


def _by_name(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
