-- Extends the lease of an ick shard for its holder.
--   KEYS[1] lease
--   ARGV[1] the holder's token
--   ARGV[2] time to live in ms
-- Returns 1; 0 if it is not held any more.
--@include shard
local problem, lease = held_lease(KEYS[1], ARGV[1])
if not lease then
  return problem or 0
end
extend(KEYS[1], ARGV[2])
return 1
