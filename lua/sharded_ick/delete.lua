-- Deletes the members of an ick shard with all that stands beside them; its lease and mark stay.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] mark
--   KEYS[5..] whatever else is to be deleted
--   ARGV[1] the caller's mark
-- Returns how many of the first three were deleted; nil, with nothing changed, if the caller's layout is out
-- of date.
--@include shard
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse(version, pset, cset, false)
local wrong, state = mark_state(KEYS[4], ARGV[1])
if problem or wrong or state == 'newer' then
  return problem or wrong or false
end
redis.call('UNLINK', unpack(KEYS, 5))
return redis.call('UNLINK', version, pset, cset)
