-- Removes a time shard with its messages and its mark.
-- KEYS: mark, waiting, leased, messages, history, consumed, released, dead. ARGV: the caller's mark.
-- Returns how many messages it held that were not consumed.
--@include settle
local problem = refuse(KINDS)
if problem then
  return problem
end
local held = redis.call('HLEN', messages) - redis.call('SCARD', consumed)
redis.call('UNLINK', unpack(KEYS))
return math.max(0, held)
