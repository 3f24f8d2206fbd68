-- Forgets dead members of an Ick for good.
-- KEYS: version, producer set, consumer set, dead. ARGV: members (at most 500).
-- Returns how many were dead.
--@include ick
local problem = refuse_grave(false)
if problem then
  return problem
end
return redis.call('HDEL', KEYS[4], unpack(ARGV))
