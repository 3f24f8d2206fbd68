-- Counts the messages of a time shard; changes nothing.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] leased
--   KEYS[4] consumed
--   KEYS[5] released
--   KEYS[6] dead
--   ARGV[1] the caller's mark
-- Returns { waiting, due, leased, consumed, dead, for how many ms the first due message has been due }.
--@include time_shard
--@include clock
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'zset', 'zset', 'set', 'zset', 'zset' })
if problem then
  return problem
end
local time = now()
local instant = string.format('%.0f', time)
local due, overdue = 0, 0
for _, key in ipairs({ KEYS[2], KEYS[5] }) do
  due = due + redis.call('ZCOUNT', key, '-inf', instant)
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] and is_moment(key, first[2]) then
    overdue = math.max(overdue, time - first[2])
  end
end
if unbelieved then
  return unbelieved
end
-- Until a release is applied, its message stands in `leased` too, or in `waiting` if it came late: so
-- all that stand in one of the two are counted once, and their shares are right but for late releases.
local held = redis.call('ZCARD', KEYS[3])
local released = math.min(redis.call('ZCARD', KEYS[5]), held)
return {
  redis.call('ZCARD', KEYS[2]) + released, due, held - released,
  redis.call('SCARD', KEYS[4]), redis.call('ZCARD', KEYS[6]), overdue,
}
