-- Asks for the early end of a lease. The next take of the time shard, or a sweeper, applies it. This script
-- writes no key that a sweeper WATCHes, and runs on a full server.
--   KEYS[1] mark
--   KEYS[2] history
--   KEYS[3] consumed
--   KEYS[4] dead
--   KEYS[5] released
--   KEYS[6] notifications
--   ARGV[1] the caller's mark
--   ARGV[2] the id
--   ARGV[3] the lease's token ('': any holder's lease)
--   ARGV[4] the due time in ms ('': the old one)
--   ARGV[5] 1 if that counts from now, else 0
-- Returns 1, or 0 if somebody else has taken the message since, or it is consumed or dead.
--@include releasing
local history, consumed, dead, released, notifications = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'set', 'zset', 'zset', 'stream' })
if problem then
  return problem
end
local is_asked =
  ask_release(history, consumed, dead, released, notifications, ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return unbelieved or (is_asked and 1 or 0)
