-- Releases the lease of an ick shard by the nonce that it was asked for with, by a caller that does not know
-- the token.
--   KEYS[1] lease
--   ARGV[1] nonce
-- Returns 1; 0 if the nonce does not hold it.
--@include shard
local problem, lease = read_lease(KEYS[1])
if problem then
  return problem
end
local is_mine = is_granted(KEYS[1], lease, ARGV[1])
if is_mine then
  redis.call('HDEL', KEYS[1], 'deadline')
end
local list = withdrawn_nonces(KEYS[1])
list[#list + 1] = string.format('%.0f', now() + UNDER_WAY_MS) .. ' ' .. ARGV[1]
-- The call may still be under way, and a full server would grant it the lease. After a removal it allows this.
redis.call('HDEL', KEYS[1], 'withdrawn')
redis.call('HSET', KEYS[1], 'withdrawn', table.concat(list, ' ', math.max(1, #list - MOST_WITHDRAWN + 1)))
return is_mine and 1 or 0
