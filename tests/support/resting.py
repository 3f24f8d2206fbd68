"""Time for debounced members: it passes at once, without a clock."""

from __future__ import annotations

from typing import Any

from workstealing.structures.ick.members import IckNames

_PASS = """
local list = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #list, 2 do
  redis.call('ZADD', KEYS[1], string.format('%.0f', list[i + 1] - ARGV[1]), list[i])
  local latest, score = string.match(redis.call('HGET', KEYS[2], list[i]), '^(%d+) (.*)$')
  redis.call('HSET', KEYS[2], list[i], string.format('%.0f %s', latest - ARGV[1], score))
end
return #list / 2
"""


def let_pass(client: Any, names: IckNames, seconds: float) -> None:
    """Let so much time pass for what waits in an Ick: it was added so much earlier."""
    client.eval(_PASS, 2, names.waiting, names.terms, round(1000 * seconds))


def waits(client: Any, names: IckNames) -> dict[bytes, float]:
    """Return the members that wait, with their scores; both keys have the same ones."""
    terms = client.hgetall(names.terms)
    assert set(client.zrange(names.waiting, 0, -1)) == terms.keys()
    return {member: float(text.split()[1]) for member, text in terms.items()}
