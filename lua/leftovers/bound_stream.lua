-- Removes the oldest entries of a stream beyond a declared bound, read or unread.
-- KEYS: the stream, the audit stream. ARGV: as of note(); own: the most entries, -1 for any number; the
-- age in ms after which entries go, -1 for any; the room.
-- Returns how many entries were removed.
--@include note
--@include clock
--@include trim
local stream, most, age = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('TYPE', stream).ok ~= 'stream' then
  return 0
end
local removed = 0
if most >= 0 then
  removed = redis.call('XTRIM', stream, 'MAXLEN', '~', most, 'LIMIT', room)
  local over = math.min(100, room - removed, redis.call('XLEN', stream) - most)
  if over > 0 then
    removed = removed + redis.call('XTRIM', stream, 'MAXLEN', redis.call('XLEN', stream) - over)
  end
end
if age >= 0 and removed < room then
  local oldest = string.format('%.0f-0', math.max(0, now() - age))
  removed = removed + trim(stream, oldest, '(' .. oldest, room - removed)
end
note(removed)
return removed
