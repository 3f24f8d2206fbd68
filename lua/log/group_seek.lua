-- Moves a group of a log to another offset, back or forth.
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
--   ARGV[3] first, last or an offset, from the end if negative
-- Returns { 0, the offset }, or the reply of open_group() if that refuses.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
local offset = offset_of(ARGV[3], group.tail, group.first)
-- An HSET alone is refused where memory is full.
redis.call('HDEL', state, '')
redis.call('HSET', state, 'offset', whole(offset))
local at = now()
wake(state, line, turns, granted, at, group.tail, group.first, due_of(pending, group, at))
return { 0, offset }
