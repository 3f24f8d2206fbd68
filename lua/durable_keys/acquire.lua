-- Takes a lease: writes a new fencing token at a durable key, unless somebody holds it.
-- KEYS: key, due index, mark, fence. ARGV: mark, the lease's length in ms. The fence is the last token
-- of the index shard, a string. Returns the token, greater than every one before, or nil.
--@include keys
local key, due, mark, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local at = now()
local problem, kind, _, found = refuse(key, due, mark, at)
if problem then
  return problem
end
local last = redis.pcall('GET', fence)
if type(last) == 'table' then
  return refusal(last, fence, 'does not hold a fencing token')
end
if last and not string.match(last, '^%d+$') then
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
local before = last and is_greater(last, BELOW_ALL) and last or BELOW_ALL
local token = next_token(before, server_time())
redis.call('SET', fence, token)
redis.call('SET', key, token)
return token
