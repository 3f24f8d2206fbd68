-- Removes consumers of a stream's group that have nothing pending. A consumer that has asked for
-- entries since it was judged loses nothing: the server makes it anew when it asks again.
--   KEYS[1] the stream
--   KEYS[2] the audit stream
--   ARGV[1] how many arguments of the rule's own follow: the next two and the room
--   ARGV[2] the group
--   ARGV[3..] the consumers' names; the room: the most parts that the slice may still remove; the audit
--     stream's most entries, the ms after which it ends, and the fields of the line
-- Returns how many consumers were removed.
--@include note
local room, own = room_of(ARGV)
local stream, group = KEYS[1], ARGV[2]
if redis.call('TYPE', stream).ok ~= 'stream' then
  return 0
end
local removed = 0
for i = 3, own do
  if removed == room then
    break
  end
  local pending = redis.pcall('XPENDING', stream, group, '-', '+', 1, ARGV[i])
  if pending.err then
    -- The group is gone.
    break
  end
  if #pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', stream, group, ARGV[i])
    removed = removed + 1
  end
end
note(KEYS[2], ARGV, removed)
return removed
