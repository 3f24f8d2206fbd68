-- Lets messages of a time shard's dead set wait again, without their attempts.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] history
--   KEYS[4] consumed
--   KEYS[5] dead
--   KEYS[6] notifications
--   ARGV[1] the caller's mark
--   ARGV[2..] ids
-- Returns how many.
--@include time_shard
--@include waking
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'zset', 'hash', 'set', 'zset', 'stream' })
if problem then
  return problem
end
local count, first, before = 0, math.huge, first_moment(KEYS[2])
for i = 2, #ARGV do
  local id = ARGV[i]
  local takes, _, due, consumer = read_history(redis.call('HGET', KEYS[3], id), KEYS[3])
  if takes and redis.call('SISMEMBER', KEYS[4], id) == 0 and redis.call('ZREM', KEYS[5], id) == 1 then
    redis.call('HSET', KEYS[3], id, write_history(takes, takes, due, consumer))
    redis.call('ZADD', KEYS[2], due, id)
    count, first = count + 1, math.min(first, due)
  end
end
if first < before then
  wake(KEYS[6])
end
return count == 0 and unbelieved or count
