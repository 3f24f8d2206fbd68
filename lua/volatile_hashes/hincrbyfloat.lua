-- HINCRBYFLOAT hash field amount, for a volatile hash; a live field keeps its deadline.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, field, amount. Returns the new value.
--@include hash
local problem = refuse()
if problem then
  return problem
end
drop_past({ ARGV[2] })
return redis.pcall('HINCRBYFLOAT', hash, ARGV[2], ARGV[3])
