-- PERSIST key, for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   ARGV[1] mark
-- Returns 1 if a deadline was taken away, else 0.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local problem, kind, deadline = refuse(key, due, mark, ARGV[1], now())
if problem then
  return problem
end
if kind == 'none' or not deadline then
  return 0
end
redis.call('PERSIST', key)
redis.call('ZREM', due, key)
return 1
