-- Deletes an Ick with all that stands beside it.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   KEYS[6] seen
--   KEYS[7] dead
--   KEYS[8] waiting
--   KEYS[9] terms
--   ARGV[1] DEL, or UNLINK, which frees later
-- Returns how many of the first three were deleted, 0 if there was no Ick.
--@include ick
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse_all(unpack(KEYS))
if problem then
  return problem
end
if ARGV[1] == 'UNLINK' then
  redis.call('UNLINK', unpack(KEYS, 4))
  return redis.call('UNLINK', version, pset, cset)
end
redis.call('DEL', unpack(KEYS, 4))
return redis.call('DEL', version, pset, cset)
