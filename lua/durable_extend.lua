-- Lets a lease end so long from now, if a durable key's value is still the holder's token.
-- KEYS: key, due index, mark. ARGV: mark, token, the length from now on in ms. Returns 1 if it was
-- held, else 0.
--@include durable_write
--@include durable_lease
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at = now()
local problem, kind, _, found = refuse(key, due, mark, at)
if problem then
  return problem
end
if kind == 'none' or not is_held_by(key, ARGV[2]) then
  return 0
end
problem = schedule(key, due, mark, found, at + ARGV[3])
if problem then
  return problem
end
redis.call('PERSIST', key)
return 1
