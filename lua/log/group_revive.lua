-- Lets entries that a group of a log has set aside be handed out again, their attempts forgotten.
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
--   ARGV[3..] the offsets
-- Returns { 0, how many were dead }, or the reply of open_group() if that refuses.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
for i = 3, #ARGV do
  local grave = redis.call('HGET', dead, ARGV[i])
  if grave and not string.find(grave, '^%d+ %d+ %d+:') then
    return layout_error(dead, 'does not hold the dead entries of a group of a log')
  end
end
local count = 0
for i = 3, #ARGV do
  local grave = redis.call('HGET', dead, ARGV[i])
  local length, behind = string.match(grave or '', '^%d+ %d+ (%d+):()')
  if length then
    -- Deleted first: then a full server refuses nothing of it.
    redis.call('HDEL', dead, ARGV[i])
    redis.call('HSET', revived, ARGV[i], string.sub(grave, behind + length))
    redis.call('ZADD', pending, 0, digits(ARGV[i]))
    redis.call('HDEL', attempts, ARGV[i])
    count = count + 1
  end
end
local at = now()
wake(state, line, turns, granted, at, group.tail, group.first, due_of(pending, group, at))
return { 0, count }
