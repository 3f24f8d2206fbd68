-- MGET key [key ...], for durable keys.
--   KEYS[1..] key and due index of each key
-- Returns the values; nil for what is missing, whose deadline has passed, or what is no string.
--@include keys
local values = {}
for i = 1, #KEYS, 2 do
  local value, problem = live_value(KEYS[i], KEYS[i + 1])
  if problem then
    return problem
  end
  values[#values + 1] = type(value) == 'string' and value
end
return values
