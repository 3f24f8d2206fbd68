-- Deletes an Ick with all that stands beside it.
-- KEYS: version, producer set, consumer set, held, attempts, seen, dead. Returns how many of
-- the first three were deleted, 0 if there was no Ick. ARGV: DEL, or UNLINK, which frees later.
--@include ick
local problem = refuse_all()
if problem then
  return problem
end
if ARGV[1] == 'UNLINK' then
  redis.call('UNLINK', unpack(KEYS, 4))
  return redis.call('UNLINK', version, pset, cset)
end
redis.call('DEL', unpack(KEYS, 4))
return redis.call('DEL', version, pset, cset)
