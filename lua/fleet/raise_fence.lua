-- Raises the last fencing token of an index shard to that of a key's former node.
--   KEYS[1] fence
--   ARGV[1] the former node's token
-- Returns 1 if it was raised, else 0.
--@include clock
--@include layout
local last = redis.pcall('GET', KEYS[1])
if type(last) == 'table' then
  return refusal(last, KEYS[1], 'does not hold a fencing token')
end
if last and not is_greater(ARGV[1], last) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
