-- Puts dead members of an Ick back into the producer set; the lower score wins.
-- KEYS: version, producer set, consumer set, dead. ARGV: members (at most 500).
-- Returns how many were dead.
--@include ick
local problem = refuse_grave(true)
if problem then
  return problem
end
local revived = 0
for _, member in ipairs(ARGV) do
  local history = redis.call('HGET', KEYS[4], member)
  if history then
    redis.call('HDEL', KEYS[4], member)
    -- A member without a readable score waits first in line. NaN, which no server takes, is unlike itself.
    local text = string.match(history, '^{"score": "([^"]+)"')
    local score = tonumber(text or nil)
    redis.call('ZADD', pset, 'LT', score and score == score and text or 0, member)
    revived = revived + 1
  end
end
return revived
