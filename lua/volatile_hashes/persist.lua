-- PERSIST hash, for a whole volatile hash; its fields keep their deadlines.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
-- Returns 1 or 0.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
if not has_live(hash, deadlines) then
  return 0
end
return redis.call('PERSIST', hash)
