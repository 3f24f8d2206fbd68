"""The shuffle queue as it was published, written anew from its description: what ours is held to.

It is a reference of speed for the benchmarks, and of faults for the tests: a test of a fault shows
that it fails here. A read is one script that passes over all streams from a stored offset until one
gives a message. A write takes the shortest of the tenant's streams, notifies, and sets EXPIRE on
the keys that it knows. A blocking read looks, waits for a notification in the group of all
readers, and looks again; of the notifications one is kept. A write for fewer streams than are in
use looks at the streams beyond one further than it should. Nothing recovers what a consumer took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_WRITE = """
local base, streams, ttl, used = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local meta, notifications = base .. ':meta', base .. ':notifications'
local known = tonumber(redis.call('HGET', meta, 'streams') or 0)
if streams > known then
  redis.call('HSET', meta, 'streams', streams)
elseif streams < known then
  local beyond = 0
  for n = streams + 1, known do
    beyond = beyond + redis.call('XLEN', base .. ':s' .. n)
  end
  if beyond == 0 then
    redis.call('HSET', meta, 'streams', streams)
  end
end
local shortest, least
for i = 4, 3 + used do
  local length = redis.call('XLEN', base .. ':s' .. ARGV[i])
  if not least or length < least then
    shortest, least = ARGV[i], length
  end
  if length == 0 then
    break
  end
end
local id = redis.call('XADD', base .. ':s' .. shortest, '*', unpack(ARGV, 4 + used))
redis.call('XADD', notifications, 'MAXLEN', 1, '*', 's', shortest)
redis.call('EXPIRE', meta, ttl)
redis.call('EXPIRE', notifications, ttl)
for i = 4, 3 + used do
  redis.call('EXPIRE', base .. ':s' .. ARGV[i], ttl)
end
return { shortest, id }
"""

_READ = """
local base, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local meta = base .. ':meta'
local function take(key, in_group)
  local got = redis.pcall('XREADGROUP', 'GROUP', in_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
  if got and got.err then
    redis.call('XGROUP', 'CREATE', key, in_group, 0, 'MKSTREAM')
    got = redis.call('XREADGROUP', 'GROUP', in_group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
  end
  return got and got[1][2][1]
end
if redis.call('EXISTS', base) == 1 then
  local entry = take(base, base)
  if entry then
    return { 'default', entry[1], entry[2] }
  end
end
local stored = redis.call('HMGET', meta, 'streams', 'offset')
local streams, offset = tonumber(stored[1] or 0), tonumber(stored[2] or 0)
for i = 0, streams - 1 do
  local n = (offset + i) % streams
  local entry = take(base .. ':s' .. n, group)
  if entry then
    redis.call('HSET', meta, 'offset', (n + 1) % streams)
    return { tostring(n), entry[1], entry[2] }
  end
end
return false
"""  # noqa: E501


class Published(NamedTuple):
    """A message of the published queue: its stream ("default" or a number), entry id and fields."""

    stream: str
    entry: str
    fields: dict[str, str]


class PublishedShuffleQueue:
    """The published queue: `write`, `read`, `ack` and `length`.

    Arguments: a blocking client; the queue's name; how many streams a write uses; the seconds after
    which an unused queue expires. `look` and `wait` are the two steps of a blocking read.
    """

    def __init__(self, client: Any, name: str, streams: int = 64, ttl: int = 86_400) -> None:
        self.client = client
        self.name = name
        self.streams = streams
        self.ttl = ttl
        self._write = client.register_script(_WRITE)
        self._read = client.register_script(_READ)

    def write(self, streams_of_tenant: Sequence[int], fields: dict[str, Any]) -> str:
        """Write to the shortest of these streams; return "stream-entry id"."""
        pairs = [part for pair in fields.items() for part in pair]
        args = [self.streams, self.ttl, len(streams_of_tenant), *streams_of_tenant, *pairs]
        stream, entry = self._write([self.name], args)
        return f"{stream.decode()}-{entry.decode()}"

    def look(self, group: str, consumer: str) -> Published | None:
        """Pass once over all streams; return the first message found."""
        got = self._read([self.name], [group, consumer])
        if not got:
            return None
        stream, entry, flat = got
        texts = [part.decode() for part in flat]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        return Published(stream.decode(), entry.decode(), fields)

    def wait(self, group: str, consumer: str, block: float) -> bool:
        """Wait so many seconds for a notification; say whether one came."""
        key, ms = f"{self.name}:notifications", int(block * 1000)
        try:
            self.client.xgroup_create(key, group, id="$", mkstream=True)
        except Exception as error:
            if "BUSYGROUP" not in str(error):
                raise
        return bool(self.client.xreadgroup(group, consumer, {key: ">"}, count=1, block=ms))

    def read(
        self,
        group: str,
        consumer: str,
        block: float = 0,
        between: Callable[[], None] | None = None,
    ) -> Published | None:
        """Look, wait for a notification, look again. `between` runs after the first look."""
        found = self.look(group, consumer)
        if found or not block:
            return found
        if between is not None:
            between()
        return self.look(group, consumer) if self.wait(group, consumer, block) else None

    def ack(self, group: str, message: Published) -> None:
        """Acknowledge and delete the message."""
        key = self.name if message.stream == "default" else f"{self.name}:s{message.stream}"
        self.client.xack(key, group if message.stream != "default" else self.name, message.entry)
        self.client.xdel(key, message.entry)

    def length(self) -> int:
        """Sum the lengths of all the streams that the queue knows of."""
        known = int(self.client.hget(f"{self.name}:meta", "streams") or 0)
        keys = [self.name, *(f"{self.name}:s{n}" for n in range(known))]
        return sum(self.client.xlen(key) for key in keys)
