-- HINCRBY hash field amount, for a volatile hash; a live field keeps its deadline.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, field, amount. Returns the new value, a large one as text.
--@include hash
local problem = refuse()
if problem then
  return problem
end
drop_past({ ARGV[2] })
local reply = redis.pcall('HINCRBY', hash, ARGV[2], ARGV[3])
if type(reply) == 'number' and math.abs(reply) >= 2 ^ 53 then
  -- Lua's numbers are exact up to here only.
  return redis.call('HGET', hash, ARGV[2])
end
return reply
