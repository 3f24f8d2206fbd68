-- Removes the oldest entries of a stream beyond a declared bound, read or unread.
--   KEYS[1] the stream
--   KEYS[2] the audit stream
--   ARGV[1] how many arguments of the rule's own follow
--   ARGV[2] the most entries, -1 for any number
--   ARGV[3] the age in ms after which entries go, -1 for any
--   ARGV[4] the room: the most parts that the slice may still remove
--   ARGV[5..] the audit stream's most entries, the ms after which it ends, and the fields of the line
-- Returns how many entries were removed.
--@include note
--@include clock
--@include trim
local room = room_of(ARGV)
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
note(KEYS[2], ARGV, removed)
return removed
