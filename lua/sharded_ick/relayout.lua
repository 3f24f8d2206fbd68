-- Changes the layout of a ShardedIck, if it is still what the caller read; its generation grows.
--   KEYS[1] the layout
--   ARGV[1] the generation that the caller read
--   ARGV[2] ick_shards
--   ARGV[3] moving_from (0: nothing is being moved)
-- Returns 1 if it was changed, else 0.
--@include clock
--@include layout
local found = redis.pcall('HGET', KEYS[1], 'generation')
if type(found) == 'table' then
  return refusal(found, KEYS[1], 'does not hold a layout')
end
if found ~= ARGV[1] then
  return 0
end
redis.call(
  'HSET',
  KEYS[1],
  'generation',
  next_token(ARGV[1], server_time()),
  'ick_shards',
  ARGV[2],
  'moving_from',
  ARGV[3]
)
return 1
