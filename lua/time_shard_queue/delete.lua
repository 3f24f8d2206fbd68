-- Removes a time shard with its messages and its mark.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] leased
--   KEYS[4] messages
--   KEYS[5] history
--   KEYS[6] consumed
--   KEYS[7] released
--   KEYS[8] dead
--   KEYS[9] notifications
--   ARGV[1] the caller's mark
-- Returns how many messages it held that were not consumed.
--@include settle
local mark, waiting, leased, messages, history, consumed, released, dead = unpack(KEYS)
KINDS[8] = 'stream'
local problem = refuse(mark, ARGV[1], KEYS, KINDS)
if problem then
  return problem
end
local held = redis.call('HLEN', messages) - redis.call('SCARD', consumed)
redis.call('UNLINK', unpack(KEYS))
return math.max(0, held)
