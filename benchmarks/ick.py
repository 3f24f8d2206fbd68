"""What the Ick's scripts cost the server and the caller, beside redis-ick's own algorithm.

The reference is that algorithm, written anew: a guard that reads the version and three types; an
add that asks for each member's score before it adds it; an exchange that asks for each score, and
moves what it has found in bulk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from figures import Figure, Target, cost_figure, in_turn, speed_figure
from servers import RedisServer

from workstealing.structures import Ick

ROUNDS = 60

GUARD = """
local version = redis.call('GET', KEYS[1])
local kinds = { redis.call('TYPE', KEYS[1]).ok, redis.call('TYPE', KEYS[2]).ok,
  redis.call('TYPE', KEYS[3]).ok }
if version and version ~= 'ick.v1' then
  return redis.error_reply('unknown version')
end
if not (kinds[1] == 'none' or kinds[1] == 'string') then
  return redis.error_reply('no version')
end
for i = 2, 3 do
  if not (kinds[i] == 'none' or kinds[i] == 'zset') then
    return redis.error_reply('no set')
  end
end
"""

ADD = (
    GUARD
    + """
local new, changed = 0, 0
for i = 1, #ARGV, 2 do
  local score, member = tonumber(ARGV[i]), ARGV[i + 1]
  local before = redis.call('ZSCORE', KEYS[2], member)
  if not before then
    redis.call('ZADD', KEYS[2], score, member)
    new = new + 1
  elseif score < tonumber(before) then
    redis.call('ZADD', KEYS[2], score, member)
    changed = changed + 1
  end
end
redis.call('SETNX', KEYS[1], 'ick.v1')
return { new, changed }
"""
)

EXCHANGE = (
    GUARD
    + """
local wanted, committed = tonumber(ARGV[1]), 0
for first = 2, #ARGV, 7900 do
  local last = math.min(first + 7899, #ARGV)
  committed = committed + redis.call('ZREM', KEYS[3], unpack(ARGV, first, last))
end
while true do
  local places = math.min(wanted - redis.call('ZCARD', KEYS[3]), 3900)
  local found = places > 0 and redis.call('ZRANGE', KEYS[2], 0, places - 1, 'WITHSCORES') or {}
  if #found == 0 then
    break
  end
  local lower, all = {}, {}
  for i = 1, #found, 2 do
    local before = redis.call('ZSCORE', KEYS[3], found[i])
    if not before or tonumber(found[i + 1]) < tonumber(before) then
      lower[#lower + 1] = tonumber(found[i + 1])
      lower[#lower + 1] = found[i]
    end
    all[#all + 1] = found[i]
  end
  redis.call('ZREM', KEYS[2], unpack(all))
  if #lower > 0 then
    redis.call('ZADD', KEYS[3], unpack(lower))
  end
end
redis.call('SETNX', KEYS[1], 'ick.v1')
local reply = { committed }
for _, part in ipairs(redis.call('ZRANGE', KEYS[3], 0, wanted - 1, 'WITHSCORES')) do
  table.insert(reply, part)
end
return reply
"""
)


class _Reference:
    """redis-ick's algorithm behind the methods that are measured."""

    def __init__(self, client: Any, key: str) -> None:
        self.client = client
        self._add = client.register_script(ADD)
        self._exchange = client.register_script(EXCHANGE)
        self._keys = Ick(client, key).names.sets

    def add(self, members: dict[str, float]) -> Any:
        args = [part for member, score in members.items() for part in (score, member)]
        return self._add(self._keys, args)

    def exchange(self, n: int, *commit: Any) -> list[tuple[Any, float]]:
        _, *flat = self._exchange(self._keys, (n, *commit))
        return [(m, float(s)) for m, s in zip(flat[::2], flat[1::2], strict=True)]

    def delete(self) -> None:
        self.client.delete(*self._keys)


class _Meter:
    """Times calls by the caller's clock, and by the server's own count of its scripts."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def script_seconds(self) -> float:
        """Return for how long scripts have kept the server busy so far."""
        stats = self._client.info("commandstats")
        return float(
            sum(stats.get(f"cmdstat_{n}", {}).get("usec", 0) for n in ("evalsha", "eval")) / 1e6
        )

    def run(self, call: Callable[[], Any], calls: int) -> tuple[float, float]:
        """Return the server's and the caller's seconds for one of so many calls."""
        before, start = self.script_seconds(), time.perf_counter()
        call()
        spent = time.perf_counter() - start
        return (self.script_seconds() - before) / calls, spent / calls


def _members(count: int, generation: int) -> dict[str, float]:
    # Dirty lists get their members in no order, with times that are almost in order.
    return {
        f"document:{(i * 7919 + generation) % 1_000_003}": 1_700_000_000.25 + (i * 7919) % 1_000
        for i in range(count)
    }


def _adds(count: int, *, again: bool, calls: int) -> Callable[[Any, _Meter], tuple[float, float]]:
    def run(ick: Any, meter: _Meter) -> tuple[float, float]:
        ick.delete()
        ick.add(_members(5_000, 500_000))
        batches = [_members(count, 0 if again else i * count * 3) for i in range(calls)]
        if again:
            ick.add(batches[0])
        return meter.run(lambda: [ick.add(batch) for batch in batches], calls)

    return run


def _exchanges(count: int, calls: int) -> Callable[[Any, _Meter], tuple[float, float]]:
    def run(ick: Any, meter: _Meter) -> tuple[float, float]:
        ick.delete()
        for start in range(0, count * (calls + 1), 1_000):
            ick.add({f"document:{i}": float(i) for i in range(start, start + 1_000)})
        batch = [ick.exchange(count)]

        def work() -> None:
            for _ in range(calls):
                batch[0] = ick.exchange(count, *(member for member, _ in batch[0]))

        return meter.run(work, calls)

    return run


CASES: list[tuple[str, float, Callable[[Any, _Meter], tuple[float, float]]]] = [
    ("add_1000_new", 2.0, _adds(1_000, again=False, calls=3)),
    ("add_1000_again", 2.3, _adds(1_000, again=True, calls=3)),
    ("exchange_1000", 2.0, _exchanges(1_000, 3)),
    ("add_1", 1.15, _adds(1, again=False, calls=300)),
    ("exchange_100", 1.1, _exchanges(100, 10)),
]


def measure(server: RedisServer) -> list[Figure]:
    """Measure adds and exchanges: in the server's own count of its scripts, and by the caller."""
    client = server.client()
    meter = _Meter(client)
    ours: Ick = Ick(client, "ours")
    theirs = _Reference(client, "theirs")
    figures = []
    for name, least, case in CASES:
        spent: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}

        def batch(who: str, ick: Any, case: Any = case, spent: Any = spent) -> Callable[[], float]:
            def run() -> float:
                spent[who].append(case(ick, meter))
                return float(spent[who][-1][0])

            return run

        costs = in_turn(batch("ours", ours), batch("theirs", theirs), ROUNDS)
        figures.append(
            speed_figure(
                f"ick_{name}_server", "redis-ick's algorithm, the server's own count", costs,
                Target(least=least),
            )
        )  # fmt: skip
        called = ([c for _, c in spent["ours"][1:]], [c for _, c in spent["theirs"][1:]])
        figures.append(
            cost_figure(f"ick_{name}_called", "redis-ick's algorithm", called, Target(most=1.0))
        )
    return figures
