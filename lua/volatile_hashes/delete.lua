-- DEL hash or UNLINK hash, for a volatile hash: with its deadlines and its entry in the due index.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, the command. Returns 1 if a field was live, else 0.
--@include hash
local problem = refuse()
if problem then
  return problem
end
local live = has_live() and 1 or 0
redis.call(ARGV[2], hash, deadlines)
redis.call('ZREM', due, hash)
return live
