-- Adds ids that were found to have work, unless the application has tracked or untracked any id of the
-- sub-set since.
--   KEYS[1] ids
--   KEYS[2] state
--   ARGV[1] mark
--   ARGV[2] the generation that was read before ('' for none)
--   ARGV[3..] ids
-- Returns how many were added, or -1 if another writer came first.
--@include tracked
local ids, state = KEYS[1], KEYS[2]
local problem = refuse(ids, state, ARGV[1])
if problem then
  return problem
end
if (redis.call('HGET', state, 'generation') or '') ~= ARGV[2] then
  return -1
end
return call_in_runs('SADD', ids, ARGV, 3)
