-- HTTL hash FIELDS n field [field ...], and its siblings, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] mark
--   ARGV[1] mark (after a migration the deadlines stand elsewhere, and a caller who does not know would see
--     none)
--   ARGV[2] the ms of the unit
--   ARGV[3] 1 for the time that is left, 0 for the moment
--   ARGV[4..] FIELDS, n, fields
-- Returns per field: -2 no such field, -1 no deadline, else the time in that unit, rounded up.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local problem = refuse_mark(KEYS[3], redis.pcall('GET', KEYS[3]), ARGV[1], 'a layout mark')
if problem then
  return problem
end
local fields = fields_argument(ARGV, 4)
local size = redis.pcall('HLEN', hash)
if type(size) == 'table' then
  return size
end
local at, found, replies = now(), deadlines_of(deadlines, fields), {}
for i, field in ipairs(fields) do
  local deadline = found[i] and tonumber(found[i])
  if is_past(deadline, at) or redis.call('HEXISTS', hash, field) == 0 then
    replies[i] = -2
  elseif not deadline then
    replies[i] = -1
  else
    local time = ARGV[3] == '1' and deadline - at or deadline
    replies[i] = math.ceil(time / ARGV[2])
  end
end
return replies
