-- Acknowledges entries that a group of a log has handed out.
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
--   ARGV[3..] of each entry its offset, and the delivery that must be the last one, or ''
-- Returns { 0, how many were pending }, or the reply of open_group() if that refuses.
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
for i = 3, #ARGV, 2 do
  history_of(attempts, redis.call('HGET', attempts, ARGV[i]))
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
