-- HDEL hash field [field ...] that also ends the leases on the fields. So a call that computes a
-- field stores nothing.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] leases
--   ARGV[1] mark
--   ARGV[2] HDEL if the server keeps deadlines (else '')
--   ARGV[3] FIELDS
--   ARGV[4] their number
--   ARGV[5..] fields
-- Returns how many live fields were deleted.
--@include leases
--@include hash
local hash, deadlines, due, mark, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse_layout(mark, ARGV[1]) or refuse_leases(leases)
if problem then
  return problem
end
local fields, removed = arguments(ARGV, 5), nil
if ARGV[2] ~= '' then
  removed = redis.pcall(ARGV[2], KEYS[1], unpack(fields))
  if is_error(removed) then
    return removed
  end
else
  problem = refuse(hash, deadlines, due, mark, ARGV[1])
  if problem then
    return problem
  end
  drop_past(hash, deadlines, fields)
  removed = remove(hash, deadlines, fields)
  tidy(hash, deadlines, due)
end
void(leases, fields)
return removed
