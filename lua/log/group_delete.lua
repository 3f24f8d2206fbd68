-- Deletes a group of a log with all that it knows; the log's entries stay.
--   KEYS[1] meta
--   KEYS[2] state
--   KEYS[3] line
--   KEYS[4] turns
--   KEYS[5] granted
--   KEYS[6] pending
--   KEYS[7] attempts
--   KEYS[8] dead
--   KEYS[9] revived
--   KEYS[10] waiting
--   KEYS[11] news
--   ARGV[1] group
-- Returns how many keys were deleted.
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting = unpack(KEYS)
local facts = redis.pcall('HMGET', meta, 'mark')
local problem = refuse(meta, facts) or refuse_all(state, line, turns, granted, pending, attempts, dead, revived, waiting)
if problem then
  return problem
end
redis.call('HDEL', meta, 'group:' .. ARGV[1])
redis.call('ZREM', waiting, ARGV[1])
-- Who waits makes the group anew when he looks.
return redis.call('UNLINK', state, turns, granted, pending, attempts, dead, revived, line)
