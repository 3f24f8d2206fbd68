-- Releases the lease of an ick shard for its holder; the token stays, so that the next one is greater.
--   KEYS[1] lease
--   ARGV[1] the holder's token
-- Returns 1; 0 if it is not held any more. A holder that releases twice, because a reply was lost, has 1
-- again, as long as nobody else has taken the lease.
--@include shard
local problem, lease = held_lease(KEYS[1], ARGV[1])
if not lease then
  local found = problem or redis.call('HMGET', KEYS[1], 'token', 'deadline')
  return problem or (found[1] == ARGV[1] and not found[2]) and 1 or 0
end
redis.call('HDEL', KEYS[1], 'deadline')
return 1
