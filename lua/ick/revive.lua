-- Puts dead members of an Ick back into the producer set; the lower score wins.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] dead
--   ARGV[1..] members (at most 500)
-- Returns how many were dead.
--@include ick
local version, pset, cset, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse_grave(version, pset, cset, dead, true)
if problem then
  return problem
end
local revived = 0
for _, member in ipairs(ARGV) do
  local history = redis.call('HGET', dead, member)
  if history then
    redis.call('HDEL', dead, member)
    -- A member without a readable score waits first in line. NaN, which no server takes, is unlike itself.
    local text = string.match(history, '^{"score": "([^"]+)"')
    local score = tonumber(text or nil)
    redis.call('ZADD', pset, 'LT', score and score == score and text or 0, member)
    revived = revived + 1
  end
end
return revived
