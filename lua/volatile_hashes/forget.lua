-- HDEL hash field [field ...] that also ends the leases on the fields, so no computer stores them.
-- KEYS: hash, deadlines, due, mark, leases. ARGV: mark, HDEL if the server keeps deadlines (else ''), FIELDS,
-- their number, fields. Returns how many live fields were deleted.
--@include leases
--@include hash
local problem = refuse_layout() or refuse_leases()
if problem then
  return problem
end
local fields, removed = arguments(5), nil
if ARGV[2] ~= '' then
  removed = redis.pcall(ARGV[2], KEYS[1], unpack(fields))
  if is_error(removed) then
    return removed
  end
else
  problem = refuse()
  if problem then
    return problem
  end
  drop_past(fields)
  removed = remove(fields)
  tidy()
end
void(fields)
return removed
