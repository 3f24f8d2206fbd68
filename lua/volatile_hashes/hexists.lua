-- HEXISTS hash field, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1] field
-- Returns 1 or 0; 0 also for a field that has expired.
--@include hash
local hash, deadlines = KEYS[1], KEYS[2]
local found = redis.pcall('HEXISTS', hash, ARGV[1])
if found == 1 and is_past(redis.call('ZSCORE', deadlines, ARGV[1]), now()) then
  return 0
end
return found
