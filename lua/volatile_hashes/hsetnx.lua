-- HSETNX hash field value, for a volatile hash; an expired field counts as missing.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, field, value. Returns 1 if it was set, else 0.
--@include hash
local problem = refuse()
if problem then
  return problem
end
drop_past({ ARGV[2] })
return redis.pcall('HSETNX', hash, ARGV[2], ARGV[3])
