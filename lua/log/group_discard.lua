-- Forgets entries that a group of a log has set aside, for good.
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
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
local count = 0
for i = 3, #ARGV do
  count = count + redis.call('HDEL', dead, ARGV[i])
end
return { 0, count }
