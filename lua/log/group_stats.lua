-- Says how far a group of a log is.
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
--   ARGV[2] kind
-- Returns { 0, offset, next offset of the log, its first one, lost, waiting, pending, dead };
-- or the reply of open_group() if that refuses.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2], true)
if problem then
  return problem
end
local waiting = redis.call('ZCOUNT', line, '(' .. whole(now()), '+inf')
local lost = tonumber(redis.call('HGET', state, 'lost') or 0)
return {
  0, group.offset, group.tail, group.first, lost, waiting, redis.call('ZCARD', pending), redis.call('HLEN', dead),
}
