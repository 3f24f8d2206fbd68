-- UNLINK hash, for a volatile hash: with its deadlines and its entry in the due index.
-- KEYS: hash, deadlines, due, mark. ARGV: mark. Returns 1 if a field was live, else 0.
--@include volatile_write
local problem = refuse()
if problem then
  return problem
end
local live = has_live() and 1 or 0
redis.call('UNLINK', hash, deadlines)
redis.call('ZREM', due, hash)
return live
