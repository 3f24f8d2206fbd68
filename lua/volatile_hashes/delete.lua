-- DEL hash or UNLINK hash, for a volatile hash: with its deadlines, its entry in the due index, and the
-- leases of those who compute its fields.
-- KEYS: hash, deadlines, due, mark, leases. ARGV: mark, NATIVE if the server keeps deadlines (else ''), the
-- command. Returns 1 if a field was live, else 0.
--@include leases
--@include hash
local problem = refuse_leases()
if not problem and ARGV[2] ~= '' then
  problem = refuse_layout()
  if not problem then
    redis.call('UNLINK', leases)
    return redis.call(ARGV[3], hash)
  end
end
problem = problem or refuse()
if problem then
  return problem
end
local live = has_live() and 1 or 0
redis.call(ARGV[3], hash, deadlines, leases)
redis.call('ZREM', due, hash)
return live
