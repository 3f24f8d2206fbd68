-- PERSIST hash, for a whole volatile hash; its fields keep their deadlines.
-- KEYS: hash, deadlines, due, mark. ARGV: mark. Returns 1 or 0.
--@include hash
local problem = refuse()
if problem then
  return problem
end
if not has_live() then
  return 0
end
return redis.call('PERSIST', hash)
