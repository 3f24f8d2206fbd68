-- Says how far a group of a log is.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news. ARGV: group, kind.
-- Returns { 0, offset, next offset of the log, its first one, lost, waiting, pending, dead }; and as open_group() does.
--@include clock
--@include group
local problem, group = open_group(true)
if problem then
  return problem
end
local waiting = redis.call('ZCOUNT', line, '(' .. whole(now()), '+inf')
local lost = tonumber(redis.call('HGET', state, 'lost') or 0)
return {
  0, group.offset, group.tail, group.first, lost, waiting, redis.call('ZCARD', pending), redis.call('HLEN', dead),
}
