-- HMGET hash field [field ...], and HGETEX without an option, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1..] fields
-- Returns a list of values, nil for what is missing or expired.
--@include timed
local at = now()
local values = #ARGV <= 4000 and read_usual(KEYS[1], KEYS[2], at, ARGV, 1, #ARGV)
if values then
  return values
end
do
  --@include hash
  return live_values(KEYS[1], KEYS[2], ARGV, at)
end
