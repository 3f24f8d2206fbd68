-- Adds members to an Ick with the server's time, in seconds with fractions, as their score.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   ARGV[1..] members (at most 1,000)
-- Returns { new members, members whose score became lower }.
--@include ick
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
return add_pairs(version, pset, cset, with_time(ARGV, 1))
