-- HGETDEL hash FIELDS n field [field ...], for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, FIELDS, n, fields.
-- Returns a list of values, nil for what is missing or expired.
--@include hash
local problem = refuse()
if problem then
  return problem
end
local fields, values, taken = fields_argument(2), {}, {}
drop_past(fields)
for i, field in ipairs(fields) do
  values[i] = not taken[field] and redis.call('HGET', hash, field)
  taken[field] = true
end
remove(fields)
tidy()
return values
