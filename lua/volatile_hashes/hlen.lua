-- HLEN hash, for a volatile hash: live fields only.
--   KEYS[1] hash
--   KEYS[2] deadlines
-- Returns a number. Complexity: O(log n + expired fields).
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local size = redis.pcall('HLEN', hash)
if type(size) == 'table' then
  return size
end
return live_count(hash, deadlines)
