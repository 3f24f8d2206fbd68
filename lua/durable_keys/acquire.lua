-- Takes a lease: writes a new fencing token at a durable key, unless somebody holds it. The fence is the last
-- token of the index shard, a string.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   KEYS[4] grant
--   KEYS[5] withdrawn
--   KEYS[6] fence, a string: the last token of the index shard
--   ARGV[1] mark
--   ARGV[2] the lease's length in ms
--   ARGV[3] the caller's nonce
-- Returns the token, greater than every one before, or nil. Asked again with the same nonce, the token that
-- was granted to it.
--@include keys
--@include grant
local key, due, mark, grant, withdrawn, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local at, nonce = now(), ARGV[3]
local problem, kind, _, found = refuse(key, due, mark, ARGV[1], at)
local wrong, granted = token_of(grant, nonce)
if problem or wrong then
  return problem or wrong
end
local last = redis.pcall('GET', fence)
if type(last) == 'table' then
  return refusal(last, fence, 'does not hold a fencing token')
end
if last and not string.match(last, '^%d+$') then
  return layout_error(fence, 'does not hold a fencing token')
end
if kind == 'string' then
  return granted and granted == redis.call('GET', key) and granted
end
-- Given back before it was asked for: this call was under way for longer than its caller waited.
local over, mistaken = live_value(withdrawn, due)
if over or mistaken then
  return mistaken or type(over) == 'table' and over
end
local deadline = at + ARGV[2]
problem = schedule(key, due, mark, ARGV[1], found, deadline, string.format('%.0f', deadline), grant)
if problem then
  return problem
end
-- The time, so that a server which has lost its data does not begin again; and never the same twice.
local before = last and is_greater(last, BELOW_ALL) and last or BELOW_ALL
local token = next_token(before, server_time())
redis.call('SET', fence, token)
redis.call('SET', grant, token .. ' ' .. nonce)
redis.call('SET', key, token)
return token
