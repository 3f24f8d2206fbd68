-- Takes a lease: writes a new fencing token at a durable key, unless somebody holds it.
-- KEYS: key, due index, mark, fence. ARGV: mark, the lease's length in ms. The fence is the last token
-- of the index shard, a string. Returns the token, greater than every one before, or nil.
--@include durable_write
--@include durable_options
--@include durable_lease
local key, due, mark, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at = now()
local problem, kind, _, found = refuse(key, due, mark, at)
if problem then
  return problem
end
local last = redis.pcall('GET', fence)
if type(last) == 'table' or (last and not is_integer(last)) then
  return layout_error(fence, 'does not hold a fencing token')
end
if kind == 'string' then
  return false
end
problem = schedule(key, due, mark, found, at + ARGV[2])
if problem then
  return problem
end
-- The time, so that a server which has lost its data does not begin again; and never the same twice.
local clock = redis.call('TIME')
local token = math.max(clock[1] * 1000000 + clock[2], (tonumber(last) or 0) + 1, LEAST_TOKEN)
local text = string.format('%.0f', token)
redis.call('SET', fence, text)
redis.call('SET', key, text)
return text
