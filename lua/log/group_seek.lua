-- Moves a group of a log to another offset, back or forth.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news.
-- ARGV: group, kind, first, last or an offset, from the end if negative.
-- Returns { 0, the offset }; and as open_group() does.
--@include clock
--@include group
local problem, group = open_group()
if problem then
  return problem
end
local offset = offset_of(ARGV[3], group.tail, group.first)
-- An HSET alone is refused where memory is full.
redis.call('HDEL', state, '')
redis.call('HSET', state, 'offset', whole(offset))
local at = now()
wake(state, line, turns, granted, at, group.tail, group.first, due_of(group, at))
return { 0, offset }
