-- GET key, for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
-- Returns the value, or nil if it is missing or its deadline has passed.
--@include keys
local value, problem = live_value(KEYS[1], KEYS[2])
return problem or value
