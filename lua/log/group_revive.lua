-- Lets entries that a group of a log has set aside be handed out again, their attempts forgotten.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news. ARGV: group, kind, then the offsets.
-- Returns { 0, how many were dead }; and as open_group() does.
--@include clock
--@include group
local problem, group = open_group()
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
wake(state, line, turns, granted, at, group.tail, group.first, due_of(group, at))
return { 0, count }
