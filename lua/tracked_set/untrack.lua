-- Untracks ids of one sub-set.
--   KEYS[1] ids
--   KEYS[2] state
--   ARGV[1] mark
--   ARGV[2..] ids
-- Returns how many were tracked.
--@include tracked
local ids, state = KEYS[1], KEYS[2]
local problem = refuse(ids, state, ARGV[1]) or bump(state)
if problem and not string.find(tostring(problem.err), 'OOM', 1, true) then
  return problem
end
-- A full server takes no new generation, but deletes: at worst an id without work is added anew.
return call_in_runs('SREM', ids, ARGV, 2)
