-- HMGET hash field [field ...], and HGETEX without an option, for a volatile hash.
-- KEYS: hash, deadlines. ARGV: fields. Returns a list of values, nil for what is missing or expired.
--@include volatile
local values = redis.pcall('HMGET', hash, unpack(ARGV, 1, math.min(#ARGV, 4000)))
if values.err then
  return values
end
in_runs(4001, #ARGV, function(first, last)
  for _, value in ipairs(redis.call('HMGET', hash, unpack(ARGV, first, last))) do
    values[#values + 1] = value
  end
end)
local at
for i, deadline in ipairs(deadlines_of(ARGV)) do
  if deadline then
    at = at or now()
    if is_past(deadline, at) then
      values[i] = false
    end
  end
end
return values
