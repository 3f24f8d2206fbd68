-- Adds members to an Ick that wait until they have rested (debounce); the lower of two scores wins.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] waiting
--   KEYS[5] terms
--   ARGV[1] how long a member is to rest, in ms
--   ARGV[2] how long it waits at most, in ms
--   ARGV[3..] score ('' for the server's time in seconds) and member of each (at most 1,000 pairs)
-- Returns { new members, members whose score became lower }.
--@include waiting
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local quiet, at_most = tonumber(ARGV[1]), tonumber(ARGV[2])
return let_wait(version, pset, cset, KEYS[4], KEYS[5], quiet, at_most, { unpack(ARGV, 3) })
