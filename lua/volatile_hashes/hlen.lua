-- HLEN hash, for a volatile hash: live fields only.
-- KEYS: hash, deadlines. Returns a number. Complexity: O(log n + expired fields).
--@include hash
local size = redis.pcall('HLEN', hash)
if type(size) == 'table' then
  return size
end
return live_count()
