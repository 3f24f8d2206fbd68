-- HMGET hash field [field ...], and HGETEX without an option, for a volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   ARGV[1..] fields
-- Returns a list of values, nil for what is missing or expired.
--@include clock
local at = now()
if #ARGV <= 4000 then
  -- The usual case, without the functions of the other: nothing of this hash has expired.
  local values = redis.pcall('HMGET', KEYS[1], unpack(ARGV))
  if values.err or redis.call('ZCOUNT', KEYS[2], '-inf', at) == 0 then
    return values
  end
end
do
  --@include hash
  return live_values(KEYS[1], KEYS[2], ARGV, at)
end
