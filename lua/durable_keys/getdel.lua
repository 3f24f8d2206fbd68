-- GETDEL key, for a durable key.
-- KEYS: key, due index, mark. ARGV: mark. Returns the value, or nil if there is none.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local problem, kind = refuse(key, due, mark, now())
if problem then
  return problem
end
local value = kind == 'string' and redis.call('GET', key)
remove(key, due)
return value
