-- Moves a group of a log over entries that are holes, if it still stands where the caller has seen it.
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
--   ARGV[3] the offset of the first hole, where the group stands
--   ARGV[4] the offset behind the last one, in the same block
--   ARGV[5] epoch of the log with these holes
-- Returns { 0, the group's offset }, or the reply of open_group() if that refuses.
--@include group
local meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news = unpack(KEYS)
local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
if problem then
  return problem
end
if group.offset ~= tonumber(ARGV[3]) or group.epoch ~= ARGV[5] then
  return { 0, group.offset }
end
local offset = math.min(tonumber(ARGV[4]), group.tail)
-- An HSET alone is refused where memory is full.
redis.call('HDEL', state, '')
redis.call('HSET', state, 'offset', whole(offset))
return { 0, offset }
