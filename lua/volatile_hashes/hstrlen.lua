-- HSTRLEN hash field, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1] field
-- Returns the value's length in bytes, 0 if missing or expired.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local length = redis.pcall('HSTRLEN', hash, ARGV[1])
if type(length) == 'number' and is_past(redis.call('ZSCORE', deadlines, ARGV[1]), now()) then
  return 0
end
return length
