-- HPERSIST hash FIELDS n field [field ...], for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2..] FIELDS, n, fields
-- Returns per field: -2 no such field, -1 it has no deadline, 1 the deadline was removed.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
local fields, replies = fields_argument(ARGV, 2), {}
drop_past(hash, deadlines, fields)
for i, field in ipairs(fields) do
  if redis.call('HEXISTS', hash, field) == 0 then
    replies[i] = -2
  else
    replies[i] = redis.call('ZREM', deadlines, field) == 1 and 1 or -1
  end
end
tidy(hash, deadlines, due)
return replies
