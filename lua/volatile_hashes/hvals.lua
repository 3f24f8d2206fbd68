-- HVALS hash, for a volatile hash: values of live fields only.
-- KEYS: hash, deadlines. Returns a list of values.
--@include hash
local list = redis.pcall('HGETALL', hash)
if list.err or #list == 0 then
  return list
end
local past, live = past_fields(now()), {}
for i = 1, #list, 2 do
  if not past[list[i]] then
    live[#live + 1] = list[i + 1]
  end
end
return live
