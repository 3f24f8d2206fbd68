-- Removes the members of a sorted set whose scores are times before a window, the oldest first.
-- KEYS: the sorted set, the audit stream. ARGV: as of note(); own: the window in ms, the scores' units in
-- a second, the room.
-- Returns how many members were removed: none if the highest score is no time of this century.
--@include note
--@include clock
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
note(#old)
return #old
