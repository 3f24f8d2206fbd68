-- HVALS hash, for a volatile hash: values of live fields only.
--   KEYS[1] hash
--   KEYS[2] deadlines
-- Returns a list of values.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local list = redis.pcall('HGETALL', hash)
if list.err or #list == 0 then
  return list
end
local past, live = past_fields(deadlines, now()), {}
for i = 1, #list, 2 do
  if not past[list[i]] then
    live[#live + 1] = list[i + 1]
  end
end
return live
