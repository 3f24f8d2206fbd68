-- Says whether all members of an ick shard have been moved.
--   KEYS[1] moving
--   KEYS[2] moving dead
--   KEYS[3] begun
--   KEYS[4] moving waiting
--   ARGV[1] the layout's generation
-- Returns 1 or 0.
--@include layout
local found = redis.pcall('GET', KEYS[3])
if type(found) == 'table' then
  return refusal(found, KEYS[3], 'does not hold the generation of a resize')
end
if found ~= ARGV[1] then
  return 0
end
return redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[4]) == 0 and 1 or 0
