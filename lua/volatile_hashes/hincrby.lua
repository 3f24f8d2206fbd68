-- HINCRBY hash field amount, for a volatile hash; a live field keeps its deadline.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, field, amount, [FXX: only if the field exists].
-- Returns the new value, a large one as text, or nil: FXX is not met.
--@include hash
--@include increment
local problem = refuse()
if problem then
  return problem
end
drop_past({ ARGV[2] })
return increment(hash, ARGV[2], ARGV[3], ARGV[4])
