-- Asks for the early end of a lease. The next take of the time shard, or a sweeper, applies it. This
-- script writes no key that a sweeper WATCHes, and runs on a full server.
-- KEYS: mark, history, consumed, dead, released. ARGV: the caller's mark, the id, the lease's token ('':
-- any holder's lease), the due time in ms ('': the old one), 1 if that counts from now, else 0.
-- Returns 1, or 0 if somebody else has taken the message since, or it is consumed or dead.
--@include releasing
local problem = refuse({ 'hash', 'set', 'zset', 'zset' })
if problem then
  return problem
end
local is_asked = ask_release(ARGV[2], ARGV[3], ARGV[4], ARGV[5])
return unbelieved or (is_asked and 1 or 0)
