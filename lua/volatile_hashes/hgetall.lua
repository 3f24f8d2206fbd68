-- HGETALL hash, for a volatile hash: live fields only.
--   KEYS[1] hash
--   KEYS[2] deadlines
-- Returns field, value, field, value, ...
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local list = redis.pcall('HGETALL', hash)
if list.err or #list == 0 then
  return list
end
local past, count = past_fields(deadlines, now())
if count == 0 then
  return list
end
local live = {}
for i = 1, #list, 2 do
  if not past[list[i]] then
    live[#live + 1] = list[i]
    live[#live + 1] = list[i + 1]
  end
end
return live
