-- Deletes the members of an ick shard with all that stands beside them; its lease and mark stay.
-- KEYS: version, producer set, consumer set, mark, then whatever else is to be deleted. ARGV: the
-- caller's mark. Returns how many of the first three were deleted; nil, with nothing changed, if the caller's layout
-- is out of date.
--@include shard
local problem = refuse(false)
local wrong, state = mark_state(KEYS[4], ARGV[1])
if problem or wrong or state == 'newer' then
  return problem or wrong or false
end
redis.call('UNLINK', unpack(KEYS, 5))
return redis.call('UNLINK', version, pset, cset)
