-- Keeps messages in a time shard. A message whose id is there already stays as it is.
--   KEYS[1] mark
--   KEYS[2] waiting
--   KEYS[3] messages
--   KEYS[4] notifications
--   KEYS[5] of a message with a dedupe key: its bar
--   ARGV[1] the caller's mark
--   ARGV[2] 1 if the caller has just seen that the layout says the same, else 0
--   ARGV[3] of a message with a dedupe key: when it was claimed, in ms, by the clock of the note's node; else ''
--   ARGV[4..] of each message its id, its text, its due time in ms, and 1 if that counts from now, else 0
-- Returns how many messages are new; or, having changed nothing, -1 if there is no mark and the caller has
-- not seen the layout, -2 if the message's put is barred, -3 if it comes more than a minute from its claim.
--@include time_shard
--@include waking
local problem, marked = refuse(KEYS[1], ARGV[1], KEYS, { 'zset', 'hash', 'stream', KEYS[5] and 'string' })
if problem then
  return problem
end
-- One that is there already was put by this same call, which is sent again.
if KEYS[5] and redis.call('HEXISTS', KEYS[3], ARGV[4]) == 0 then
  if math.abs(now() - ARGV[3]) > UNDER_WAY_MS then
    return -3
  end
  if redis.call('EXISTS', KEYS[5]) == 1 then
    return -2
  end
end
if not marked then
  -- The server was flushed, or the queue was deleted. Somebody may have made another queue since.
  if ARGV[2] ~= '1' then
    return -1
  end
  local reply = redis.pcall('SET', KEYS[1], ARGV[1])
  if reply.err then
    return reply
  end
end
local new, first, before = 0, math.huge, first_moment(KEYS[2])
for i = 4, #ARGV, 4 do
  local kept = redis.pcall('HSETNX', KEYS[3], ARGV[i], ARGV[i + 1])
  if type(kept) == 'table' then
    -- This is the script's first write, so nothing has been changed. A server refuses no later one.
    return kept
  end
  if kept == 1 then
    local due = due_at(ARGV[i + 2], ARGV[i + 3])
    redis.call('ZADD', KEYS[2], due, ARGV[i])
    new, first = new + 1, math.min(first, due)
  end
end
if first < before then
  wake(KEYS[4])
end
return new
