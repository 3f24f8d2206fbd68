-- Removes messages of the dead set of a time shard for good.
--   KEYS[1] mark
--   KEYS[2] messages
--   KEYS[3] history
--   KEYS[4] consumed
--   KEYS[5] dead
--   ARGV[1] the caller's mark
--   ARGV[2..] ids
-- Returns how many of them were not consumed.
--@include time_shard
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'hash', 'set', 'zset' })
if problem then
  return problem
end
local count = 0
for i = 2, #ARGV do
  if redis.call('ZREM', KEYS[5], ARGV[i]) == 1 then
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
    -- A message that was cancelled, or acknowledged late, was not there to be discarded.
    count = count + 1 - redis.call('SREM', KEYS[4], ARGV[i])
  end
end
return count
