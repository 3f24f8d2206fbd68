-- Forgets dead members of an Ick for good.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] dead
--   ARGV[1..] members (at most 500)
-- Returns how many were dead.
--@include ick
local version, pset, cset, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse_grave(version, pset, cset, dead, false)
if problem then
  return problem
end
return redis.call('HDEL', dead, unpack(ARGV))
