-- Removes ids without work, where a full server has refused the transaction that does it.
--   KEYS[1] ids
--   KEYS[2] state
--   ARGV[1] mark
--   ARGV[2] the generation that was read before ('' for none)
--   ARGV[3..] ids
-- Returns how many were removed, or -1 if another writer came first.
--@include tracked
local ids, state = KEYS[1], KEYS[2]
if (redis.call('HGET', state, 'generation') or '') ~= ARGV[2] then
  return -1
end
return call_in_runs('SREM', ids, ARGV, 3)
