-- Acknowledges entries that a group of a log has handed out.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news.
-- ARGV: group, kind, then pairs: offset, the delivery that must be the last one or ''.
-- Returns { 0, how many were pending }; and as open_group() does.
--@include group
local problem = open_group()
if problem then
  return problem
end
for i = 3, #ARGV, 2 do
  history_of(redis.call('HGET', attempts, ARGV[i]))
end
if unbelieved then
  return unbelieved
end
local done = 0
for i = 3, #ARGV, 2 do
  local offset, delivery = ARGV[i], ARGV[i + 1]
  local history = redis.call('HGET', attempts, offset)
  if delivery == '' or (history and string.match(history, '^%d+ (%d+) ') == delivery) then
    done = done + redis.call('ZREM', pending, digits(offset))
    redis.call('HDEL', attempts, offset)
    redis.call('HDEL', revived, offset)
  end
end
return { 0, done }
