-- Looks when a take of a time shard may find something; changes nothing.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] leased
--   KEYS[4] released
--   KEYS[5] notifications
--   ARGV[1] the caller's mark
-- Returns { the id of the last notification, 0 if a take may find something now, else for how many ms none does,
-- -1 if nothing is to come without a notification }.
--@include time_shard
--@include waking
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'zset', 'zset', 'zset', 'stream' })
if problem then
  return problem
end
local first = math.min(first_moment(KEYS[2]), first_moment(KEYS[3]), first_moment(KEYS[4]))
local last = redis.call('XREVRANGE', KEYS[5], '+', '-', 'COUNT', 1)
local wait = -1
if first < math.huge then
  wait = math.min(math.max(first - now(), 0), MOST_STORED)
end
return { last[1] and last[1][1] or '0-0', wait }
