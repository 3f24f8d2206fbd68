-- HDEL hash field [field ...], for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2..] fields
-- Returns how many live fields were deleted.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local fields = arguments(ARGV, 2)
drop_past(hash, deadlines, fields)
local removed = remove(hash, deadlines, fields)
tidy(hash, deadlines, due)
return removed
