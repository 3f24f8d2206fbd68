-- DEL hash or UNLINK hash, for a volatile hash: with its deadlines, its entry in the due index, and the
-- leases of those who compute its fields.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] leases
--   ARGV[1] mark
--   ARGV[2] NATIVE if the server keeps deadlines (else '')
--   ARGV[3] the command
-- Returns 1 if a field was live, else 0.
--@include leases
--@include hash
local hash, deadlines, due, mark, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse_leases(leases)
if not problem and ARGV[2] ~= '' then
  problem = refuse_layout(mark, ARGV[1])
  if not problem then
    redis.call('UNLINK', leases)
    return redis.call(ARGV[3], hash)
  end
end
problem = problem or refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local live = has_live(hash, deadlines) and 1 or 0
redis.call(ARGV[3], hash, deadlines, leases)
redis.call('ZREM', due, hash)
return live
