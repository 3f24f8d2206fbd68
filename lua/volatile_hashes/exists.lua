-- EXISTS hash, for a volatile hash: 1 if any field is live, else 0.
--   KEYS[1] hash
--   KEYS[2] deadlines
-- Returns a number; another type at the key counts as Redis counts it.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
if redis.call('TYPE', hash).ok == 'hash' then
  return has_live(hash, deadlines) and 1 or 0
end
return redis.call('EXISTS', hash)
