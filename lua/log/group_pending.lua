-- Lists the entries that a group of a log has handed out and nobody has acknowledged, the oldest first.
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
--   ARGV[3] how many at most
--   ARGV[4] the last one that the caller has, or ''
--   ARGV[5] when that was handed out, or ''
-- Returns { 0, server's time in ms, offset, when (ms) it was handed out, its history, ... };
-- or the reply of open_group() if that refuses.
--@include clock
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2], true)
if problem then
  return problem
end
local start = 0
if ARGV[4] ~= '' then
  local score = redis.call('ZSCORE', pending, ARGV[4])
  if score and tonumber(score) == tonumber(ARGV[5]) then
    start = redis.call('ZRANK', pending, ARGV[4]) + 1
  else
    -- It has gone: from the first one of that moment on, which the caller has seen in part.
    start = redis.call('ZCOUNT', pending, '-inf', '(' .. ARGV[5])
  end
end
local found = redis.call('ZRANGE', pending, start, start + ARGV[3] - 1, 'WITHSCORES')
for i = 1, #found, 2 do
  pending_offset(pending, found[i])
  stored(pending, 'when an entry was handed out', found[i + 1], 0, MOST_STORED)
end
if unbelieved then
  return unbelieved
end
local reply = { 0, now() }
for i = 1, #found, 2 do
  reply[#reply + 1] = found[i]
  reply[#reply + 1] = found[i + 1]
  reply[#reply + 1] = redis.call('HGET', attempts, whole(tonumber(found[i]))) or ''
end
return reply
