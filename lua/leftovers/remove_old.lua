-- Removes the members of a sorted set whose scores are times before a window, the oldest first.
--   KEYS[1] the sorted set
--   KEYS[2] the audit stream
--   ARGV[1] how many arguments of the rule's own follow
--   ARGV[2] the window in ms
--   ARGV[3] the scores' units in a second
--   ARGV[4] the room: the most parts that the slice may still remove
--   ARGV[5..] the audit stream's most entries, the ms after which it ends, and the fields of the line
-- Returns how many members were removed: none if the highest score is no time of this century.
--@include note
--@include clock
local room = room_of(ARGV)
local key, window, unit = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('TYPE', key).ok ~= 'zset' then
  return 0
end
local highest = tonumber(redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) / unit
if highest < 946684800 or highest > now() / 1000 + 366 * 86400 then
  return 0
end
local before = string.format('(%.17g', (now() - window) / 1000 * unit)
local old = redis.call('ZRANGEBYSCORE', key, 0, before, 'LIMIT', 0, math.min(100, room))
if #old > 0 then
  redis.call('ZREM', key, unpack(old))
end
note(KEYS[2], ARGV, #old)
return #old
