-- HPERSIST hash FIELDS n field [field ...], for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, FIELDS, n, fields.
-- Returns per field: -2 no such field, -1 it has no deadline, 1 the deadline was removed.
--@include hash
local problem = refuse()
if problem then
  return problem
end
local fields, replies = fields_argument(2), {}
drop_past(fields)
for i, field in ipairs(fields) do
  if redis.call('HEXISTS', hash, field) == 0 then
    replies[i] = -2
  else
    replies[i] = redis.call('ZREM', deadlines, field) == 1 and 1 or -1
  end
end
tidy()
return replies
