-- Adds members to an ick shard that wait until they have rested (debounce); the lower of two scores wins.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   KEYS[5] waiting
--   KEYS[6] terms
--   ARGV[1] the caller's mark
--   ARGV[2] how long a member is to rest, in ms
--   ARGV[3] how long it waits at most, in ms
--   ARGV[4..] score ('' for the server's time in seconds) and member of each (at most 1,000 pairs)
-- Returns as sharded_ick/add does.
--@include shard
--@include waiting
local problem, state = mark_state(KEYS[4], ARGV[1])
if problem or state == 'newer' then
  return problem or false
end
local quiet, at_most = tonumber(ARGV[2]), tonumber(ARGV[3])
local reply = let_wait(KEYS[1], KEYS[2], KEYS[3], KEYS[5], KEYS[6], quiet, at_most, { unpack(ARGV, 4) })
if state == 'older' and not reply.err then
  redis.call('SET', KEYS[4], ARGV[1])
end
return reply
