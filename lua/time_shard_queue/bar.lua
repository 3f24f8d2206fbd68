-- Says whether a message of a dedupe key is still to be worked on; bars its put if it is not there.
--   KEYS[1] mark
--   KEYS[2] messages
--   KEYS[3] consumed
--   KEYS[4] dead
--   KEYS[5] the bar, a string: as long as it is there, the message is not put
--   ARGV[1] the caller's mark
--   ARGV[2] the id
--   ARGV[3] 1 to bar the put of a message that was not put, 0 to leave it be
-- Returns 2 if the message is there, 1 if it has ended and never comes again, 0 if it was not put and still may be.
--@include time_shard
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'set', 'zset', 'string' })
if problem then
  return problem
end
local id = ARGV[2]
if redis.call('HEXISTS', KEYS[2], id) == 1 then
  if redis.call('SISMEMBER', KEYS[3], id) == 0 and not redis.call('ZSCORE', KEYS[4], id) then
    return 2
  end
elseif ARGV[3] == '0' then
  return 0
end
-- A put is accepted for a minute from its claim on, by clocks that are less than another apart.
local reply = redis.pcall('SET', KEYS[5], '', 'PX', string.format('%.0f', 2 * UNDER_WAY_MS))
if type(reply) == 'table' and reply.err then
  return reply
end
return 1
