-- PERSIST key, for a durable key.
-- KEYS: key, due index, mark. ARGV: mark. Returns 1 if a deadline was taken away, else 0.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local problem, kind, deadline = refuse(key, due, mark, now())
if problem then
  return problem
end
if kind == 'none' or not deadline then
  return 0
end
redis.call('PERSIST', key)
redis.call('ZREM', due, key)
return 1
