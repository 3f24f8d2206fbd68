-- GETEX key [EX | PX | EXAT | PXAT time | PERSIST], for a durable key.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   ARGV[1] mark
--   ARGV[2..] the option as the command takes it
-- Returns the value, or nil if there is none.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at = now()
local options, problem = read_options(ARGV, 2, { PERSIST = 'time' })
if problem then
  return problem
end
local kind, found, _
problem, kind, _, found = refuse(key, due, mark, ARGV[1], at)
if problem then
  return problem
end
if kind == 'none' then
  return false
end
local wanted
wanted, problem = wanted_deadline(options, 'getex', at)
if problem then
  return problem
end
local value = redis.call('GET', key)
if wanted then
  problem = set_deadline(key, due, mark, ARGV[1], found, wanted, at)
elseif options.PERSIST then
  redis.call('PERSIST', key)
  redis.call('ZREM', due, key)
end
return problem or value
