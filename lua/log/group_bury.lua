-- Sets entries of a group of a log aside that were handed out too often.
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
--   ARGV[3..] of each entry its offset, its history as the caller has seen it, and the entry
-- Returns { 0, how many were set aside: not those that were acknowledged or handed out since };
-- or the reply of open_group() if that refuses.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
local at, buried = whole(now()), 0
for i = 3, #ARGV, 3 do
  local offset, history = ARGV[i], ARGV[i + 1]
  local handed = redis.call('ZSCORE', pending, digits(offset))
  if handed and redis.call('HGET', attempts, offset) == history then
    local entry = redis.call('HGET', revived, offset) or tonumber(offset) >= group.first and ARGV[i + 2]
    -- Where memory is full an HSET is refused, unless something was deleted before.
    redis.call('ZREM', pending, digits(offset))
    redis.call('HDEL', attempts, offset)
    if entry then
      redis.call('HSET', dead, offset, whole(handed) .. ' ' .. at .. ' ' .. #history .. ':' .. history .. entry)
      redis.call('HDEL', revived, offset)
      buried = buried + 1
    else
      redis.call('HINCRBY', state, 'lost', 1)
    end
  end
end
return { 0, buried }
