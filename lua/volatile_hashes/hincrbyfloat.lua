-- HINCRBYFLOAT hash field amount, for a volatile hash; a live field keeps its deadline.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2] field
--   ARGV[3] amount
-- Returns the new value.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
drop_past(hash, deadlines, { ARGV[2] })
return redis.pcall('HINCRBYFLOAT', hash, ARGV[2], ARGV[3])
