-- HDEL hash field [field ...], for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, fields. Returns how many live fields were deleted.
--@include hash
local problem = refuse()
if problem then
  return problem
end
local fields = arguments(2)
drop_past(fields)
local removed = remove(fields)
tidy()
return removed
