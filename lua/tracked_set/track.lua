-- Tracks ids of one sub-set.
--   KEYS[1] ids
--   KEYS[2] state
--   ARGV[1] mark
--   ARGV[2..] ids
-- Returns how many are new.
--@include tracked
local ids, state = KEYS[1], KEYS[2]
return refuse(ids, state, ARGV[1]) or bump(state) or call_in_runs('SADD', ids, ARGV, 2)
