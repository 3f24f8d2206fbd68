-- Lists the messages that were set aside in a time shard, the oldest first.
--   KEYS[1] mark
--   KEYS[2] messages
--   KEYS[3] history
--   KEYS[4] consumed
--   KEYS[5] dead
--   ARGV[1] the caller's mark
--   ARGV[2] how many to look at
--   ARGV[3] how many to pass over before them
-- Returns { how many were looked at, { id, when, message, due, attempts, consumer, ... } }.
--@include time_shard
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'hash', 'set', 'zset' })
if problem then
  return problem
end
local found = {}
local listed = redis.call('ZRANGE', KEYS[5], ARGV[3], ARGV[3] + ARGV[2] - 1, 'WITHSCORES')
for i = 1, #listed, 2 do
  local id = listed[i]
  local message = redis.call('HGET', KEYS[2], id)
  local takes, released, due, consumer = read_history(redis.call('HGET', KEYS[3], id), KEYS[3])
  is_moment(KEYS[5], listed[i + 1])
  if message and takes and redis.call('SISMEMBER', KEYS[4], id) == 0 then
    for _, part in ipairs({ id, listed[i + 1], message, due, takes - released, consumer }) do
      found[#found + 1] = part
    end
  end
end
if unbelieved then
  return unbelieved
end
return { #listed / 2, found }
