-- Adds members with scores to an ick shard; the lower of two scores wins.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   ARGV[1] the caller's mark
--   ARGV[2..] score and member of each (at most 1,000 pairs)
-- Returns { new members, members whose score became lower }; nil, with nothing changed, if the caller's
-- layout is out of date.
--@include shard
local version, pset, cset, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
return add_marked(mark, ARGV[1], version, pset, cset, { unpack(ARGV, 2) })
