-- Releases the lease of an ick shard for its holder; the token stays, so that the next one is greater.
-- KEYS: lease. ARGV: the holder's token. Returns 1; 0 if it is not held any more.
--@include shard
local problem, lease = held_lease(KEYS[1], ARGV[1])
if not lease then
  return problem or 0
end
redis.call('HDEL', KEYS[1], 'deadline')
return 1
