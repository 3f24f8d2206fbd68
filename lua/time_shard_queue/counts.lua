-- Counts the messages of a time shard; changes nothing.
-- KEYS: mark, waiting, leased, consumed, released, dead. ARGV: the caller's mark.
-- Returns { waiting, due, leased, consumed, dead, for how many ms the first due message has been due }.
--@include time_shard
--@include now
local problem = refuse({ 'zset', 'zset', 'set', 'zset', 'zset' })
if problem then
  return problem
end
local time = now()
local instant = string.format('%.0f', time)
local due, overdue = 0, 0
for _, key in ipairs({ KEYS[2], KEYS[5] }) do
  due = due + redis.call('ZCOUNT', key, '-inf', instant)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then
    overdue = math.max(overdue, time - first[2])
  end
end
-- Until a release is applied, its message stands in `leased` too, or in `waiting` if it came late.
local released = redis.call('ZCARD', KEYS[5])
local leased = math.max(0, redis.call('ZCARD', KEYS[3]) - released)
return {
  redis.call('ZCARD', KEYS[2]) + released, due, leased,
  redis.call('SCARD', KEYS[4]), redis.call('ZCARD', KEYS[6]), overdue,
}
