-- HGETALL hash, for a volatile hash: live fields only.
-- KEYS: hash, deadlines. Returns field, value, field, value, ...
--@include hash
local list = redis.pcall('HGETALL', hash)
if list.err or #list == 0 then
  return list
end
local past, count = past_fields(now())
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
