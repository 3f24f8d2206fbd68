-- GETDEL key, for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   ARGV[1] mark
-- Returns the value, or nil if there is none.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local problem, kind = refuse(key, due, mark, ARGV[1], now())
if problem then
  return problem
end
local value = kind == 'string' and redis.call('GET', key)
remove(key, due)
return value
