-- Removes consumers of a stream's group that have nothing pending.
-- KEYS: the stream, the audit stream. ARGV: as of note(); own: the group, the consumers' names, the room.
-- One that has asked for entries since it was judged loses nothing: the server makes it anew when it asks again.
-- Returns how many consumers were removed.
--@include note
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
note(removed)
return removed
