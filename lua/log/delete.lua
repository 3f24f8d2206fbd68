-- Deletes what is left of a log whose entries are all evicted, unless somebody has used it since.
--   KEYS[1] meta
--   KEYS[2] producers
--   KEYS[3..] the keys that are left
--   ARGV[1] next
--   ARGV[2] kept
--   ARGV[3] joined
--   ARGV[4] how many fields meta has
-- Returns how many keys were deleted, or -1 if somebody has used the log since.
--@include log
local meta = KEYS[1]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'kept', 'first', 'joined')
local problem = refuse(meta, facts)
if problem then
  return problem
end
-- As many fields may be other groups.
local is_same = facts[2] == ARGV[1] and facts[3] == ARGV[2] and facts[4] == ARGV[1] and (facts[5] or '0') == ARGV[3]
if redis.call('EXISTS', KEYS[2]) == 1 then
  -- They have ids again, which nobody would find without them.
  return -1
end
if not is_same or redis.call('HLEN', meta) ~= tonumber(ARGV[4]) then
  return -1
end
local deleted = redis.call('UNLINK', meta)
for i = 3, #KEYS do
  deleted = deleted + redis.call('UNLINK', KEYS[i])
end
return deleted
