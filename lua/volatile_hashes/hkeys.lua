-- HKEYS hash, for a volatile hash: live fields only.
--   KEYS[1] hash
--   KEYS[2] deadlines
-- Returns a list of fields.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local list = redis.pcall('HKEYS', hash)
if list.err or #list == 0 then
  return list
end
local past, live = past_fields(deadlines, now()), {}
for _, field in ipairs(list) do
  if not past[field] then
    live[#live + 1] = field
  end
end
return live
