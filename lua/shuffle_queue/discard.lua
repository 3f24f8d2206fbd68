-- Forgets, for good, messages that a group of a shuffle queue has set aside.
-- KEYS: meta, dead. ARGV: their places (at most 100).
-- Returns how many of the messages were there.
--@include upkeep
local dead = KEYS[2]
local problem = refuse_meta() or refuse_key('HLEN', dead, 'messages set aside')
if problem then
  return problem
end
return redis.call('HDEL', dead, unpack(ARGV))
