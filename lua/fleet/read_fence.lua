-- Reads the last fencing token of an index shard.
--   KEYS[1] fence
-- Returns the token, nil if there is none yet.
--@include layout
local last = redis.pcall('GET', KEYS[1])
if type(last) == 'table' then
  return refusal(last, KEYS[1], 'does not hold a fencing token')
end
return last
