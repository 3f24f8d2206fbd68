-- HLOOK hash FIELDS 1 field: a field's value and its time left, in one step, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] mark
--   ARGV[1] mark, as for HTTL
--   ARGV[2] FIELDS
--   ARGV[3] 1
--   ARGV[4] the field
-- Returns a list: the value, nil for what is missing or expired; its ms left, -1 for ever, -2 no such field.
--@include clock
--@include layout
local problem = refuse_mark(KEYS[3], redis.pcall('GET', KEYS[3]), ARGV[1], 'a layout mark')
if problem then
  return problem
end
local value = redis.pcall('HGET', KEYS[1], ARGV[4])
if type(value) == 'table' then
  return value
end
local deadline = value and redis.call('ZSCORE', KEYS[2], ARGV[4])
local left = deadline and deadline - now()
if not value or (left and left <= 0) then
  return { false, -2 }
end
return { value, left and math.ceil(left) or -1 }
