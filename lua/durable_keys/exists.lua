-- EXISTS key [key ...], for durable keys.
--   KEYS[1..] key and due index of each key
-- Returns how many are there; a key that is named twice counts twice, and another type counts as Redis counts
-- it.
--@include keys
local count, at = 0, now()
for i = 1, #KEYS, 2 do
  local kind, _, problem = look(KEYS[i], KEYS[i + 1], at)
  if problem then
    return problem
  end
  count = count + (kind == 'none' and 0 or 1)
end
return count
