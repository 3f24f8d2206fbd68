-- Deletes a group of a log with all that it knows; the log's entries stay.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news. ARGV: group.
-- Returns how many keys were deleted.
--@include group
local facts = redis.pcall('HMGET', meta, 'mark')
local problem = refuse(facts) or refuse_all()
if problem then
  return problem
end
redis.call('HDEL', meta, 'group:' .. ARGV[1])
redis.call('ZREM', waiting, ARGV[1])
-- Who waits makes the group anew when he looks.
return redis.call('UNLINK', state, turns, granted, pending, attempts, dead, revived, line)
