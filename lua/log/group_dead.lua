-- Lists the entries that a group of a log has set aside, piece by piece, for a caller who sorts them.
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
--   ARGV[3] the cursor to go on from, '0' at first
--   ARGV[4] the most to return; the reply may have some tens more
-- Returns { 0, how many there are, next cursor or '0', offset, "<ms of the last delivery> <ms when set aside>
-- <length of the history>:<history><entry>", ... }; or the reply of open_group() if that refuses.
--@include group
--@include bounded
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2], true)
if problem then
  return problem
end
local cursor, found = some_of(dead, ARGV[3], tonumber(ARGV[4]))
local reply = { 0, redis.call('HLEN', dead), cursor }
for i = 1, #found do
  reply[i + 3] = found[i]
end
return reply
