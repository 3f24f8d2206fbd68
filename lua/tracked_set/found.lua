-- Adds ids that were found to have work, unless the application has tracked or untracked any id of the
-- sub-set since. KEYS: ids, state. ARGV: mark, the generation that was read before ('' for none), ids.
-- Returns how many were added, or -1 if another writer came first.
--@include tracked
local problem = refuse()
if problem then
  return problem
end
if (redis.call('HGET', state, 'generation') or '') ~= ARGV[2] then
  return -1
end
return call_in_runs('SADD', ids, ARGV, 3)
