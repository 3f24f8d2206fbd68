-- Untracks ids of one sub-set. KEYS: ids, state. ARGV: mark, ids. Returns how many were tracked.
--@include tracked
local problem = refuse() or bump()
if problem and not string.find(tostring(problem.err), 'OOM', 1, true) then
  return problem
end
-- A full server takes no new generation, but deletes: at worst an id without work is added anew.
return call_in_runs('SREM', ids, ARGV, 2)
