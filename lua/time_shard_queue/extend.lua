-- Asks for a longer lease. The take or the sweeper that finds the old lease ended applies the longer one.
-- This script writes no key that a sweeper WATCHes, and runs on a full server.
--   KEYS[1] mark
--   KEYS[2] leased
--   KEYS[3] history
--   KEYS[4] consumed
--   KEYS[5] released
--   ARGV[1] the caller's mark
--   ARGV[2] the id
--   ARGV[3] the lease's token
--   ARGV[4] for how many ms from now on
-- Returns 1, or 0 if the lease no longer holds.
--@include time_shard
--@include clock
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'zset', 'hash', 'set', 'zset' })
if problem then
  return problem
end
local id = ARGV[2]
local takes, given_back, due, consumer, extended = read_history(redis.call('HGET', KEYS[3], id), KEYS[3])
if unbelieved then
  return unbelieved
end
if takes ~= ARGV[3] or not redis.call('ZSCORE', KEYS[2], id) then
  return 0
end
if redis.call('SISMEMBER', KEYS[4], id) == 1 or redis.call('ZSCORE', KEYS[5], takes .. ' ' .. id) then
  return 0
end
extended = math.max(extended, now() + ARGV[4])
-- After a removal a full server allows the rest of the script.
redis.call('HDEL', KEYS[3], id)
redis.call('HSET', KEYS[3], id, write_history(takes, given_back, due, consumer, extended))
return 1
