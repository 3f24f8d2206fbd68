-- Moves members of an Ick that have rested to the producer set, for whoever reads that alone.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] waiting
--   KEYS[5] terms
--   ARGV[1] how many at most (at most 1,000)
-- Returns how many were moved.
--@include waiting
local version, pset, cset, waiting, terms = unpack(KEYS)
local count = count_waiting(waiting, terms)
local problem = type(count) == 'table' and count or refuse(version, pset, cset, count > 0)
if problem then
  return problem
end
-- A server that is out of memory lets a script go on that has begun by what can only delete.
redis.call('ZREMRANGEBYRANK', waiting, 1, 0)
return ripen(pset, waiting, terms, tonumber(ARGV[1]))
