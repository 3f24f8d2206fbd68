-- Lets a lease end so long from now, if a durable key's value is still the holder's token.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   KEYS[4] grant
--   ARGV[1] mark
--   ARGV[2] token
--   ARGV[3] the length from now on in ms
-- Returns 1 if it was held, else 0.
--@include keys
local key, due, mark, grant = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at = now()
local problem, found = refuse_unheld(key, due, mark, ARGV[1], ARGV[2], at)
if problem then
  return problem
end
problem = set_deadline(key, due, mark, ARGV[1], found, at + ARGV[3], at)
if problem then
  return problem
end
-- If there is one: an earlier release grants without it.
redis.call('ZADD', due, 'XX', string.format('%.0f', at + ARGV[3]), grant)
return 1
