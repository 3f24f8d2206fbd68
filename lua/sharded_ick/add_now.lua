-- Adds members to an ick shard with the server's time, in seconds with fractions, as their score.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   ARGV[1] the caller's mark
--   ARGV[2..] members (at most 1,000)
-- Returns as sharded_ick/add does.
--@include shard
local version, pset, cset, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
return add_marked(mark, ARGV[1], version, pset, cset, with_time(ARGV, 2))
