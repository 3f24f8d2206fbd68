-- Moves the place of a walk, unless another recruit has moved it.
--   KEYS[1] the place
--   ARGV[1] the seconds after which it is gone, or '' for never
--   ARGV[2] n
--   ARGV[3..] n names and values as the caller read them, then the new names and values
-- Returns 1, or 0 if the place was moved; then nothing was changed.
local n = tonumber(ARGV[2])
if redis.call('HLEN', KEYS[1]) ~= n / 2 then
  return 0
end
for i = 3, n + 1, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] then
    return 0
  end
end
-- A full server refuses the HSET as a script's first write, and allows it behind another write.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], unpack(ARGV, n + 3))
if ARGV[1] ~= '' then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return 1
