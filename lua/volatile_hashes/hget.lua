-- HGET hash field, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1] field
-- Returns the value, or nil if it is missing or has expired.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local value = redis.pcall('HGET', hash, ARGV[1])
if type(value) ~= 'string' then
  return value
end
local deadline = redis.call('ZSCORE', deadlines, ARGV[1])
if deadline and is_past(deadline, now()) then
  return false
end
return value
