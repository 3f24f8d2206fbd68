-- HGETDEL hash FIELDS n field [field ...], for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2..] FIELDS, n, fields
-- Returns a list of values, nil for what is missing or expired.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local fields, values, taken = fields_argument(ARGV, 2), {}, {}
drop_past(hash, deadlines, fields)
for i, field in ipairs(fields) do
  values[i] = not taken[field] and redis.call('HGET', hash, field)
  taken[field] = true
end
remove(hash, deadlines, fields)
tidy(hash, deadlines, due)
return values
