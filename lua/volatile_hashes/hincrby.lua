-- HINCRBY hash field amount, for a volatile hash; a live field keeps its deadline.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2] field
--   ARGV[3] amount
--   ARGV[4] FXX: only if the field exists; or nothing
-- Returns the new value, a large one as text, or nil: FXX is not met.
--@include hash
--@include increment
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
drop_past(hash, deadlines, { ARGV[2] })
return increment(hash, ARGV[2], ARGV[3], ARGV[4])
