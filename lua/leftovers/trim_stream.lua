-- Removes the oldest entries of a stream that every group has acknowledged.
--   KEYS[1] the stream
--   KEYS[2] the audit stream
--   ARGV[1] how many arguments of the rule's own follow
--   ARGV[2] the least number of groups (with fewer, nobody knows who still wants to read)
--   ARGV[3] the most (with more, the server would list them for too long)
--   ARGV[4] the room: the most parts that the slice may still remove
--   ARGV[5..] the audit stream's most entries, the ms after which it ends, and the fields of the line
-- Returns how many entries were removed.
--@include note
--@include trim
local room = room_of(ARGV)
local stream, least, most = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('TYPE', stream).ok ~= 'stream' then
  return 0
end
local groups = redis.call('XINFO', 'GROUPS', stream)
if #groups < least or #groups > most then
  return 0
end

-- Says whether the id a, as text, comes before b.
local function before(a, b)
  local a_ms, a_seq = a:match('^(%d+)-(%d+)$')
  local b_ms, b_seq = b:match('^(%d+)-(%d+)$')
  if #a_ms ~= #b_ms then
    return #a_ms < #b_ms
  elseif a_ms ~= b_ms then
    return a_ms < b_ms
  elseif #a_seq ~= #b_seq then
    return #a_seq < #b_seq
  end
  return a_seq < b_seq
end

-- The first entry that some group still needs: its first pending one, or else the one behind the last
-- that it was given. An entry that a group was given and has acknowledged lies before both.
local pending, given
for _, group in ipairs(groups) do
  local about = {}
  for i = 1, #group, 2 do
    about[group[i]] = group[i + 1]
  end
  local first = redis.call('XPENDING', stream, about.name, '-', '+', 1)[1]
  if first and (not pending or before(first[1], pending)) then
    pending = first[1]
  end
  local last = about['last-delivered-id']
  if not given or before(last, given) then
    given = last
  end
end
local removed
if pending and not before(given, pending) then
  removed = trim(stream, pending, '(' .. pending, room)
else
  removed = trim(stream, given, given, room)
end
note(KEYS[2], ARGV, removed)
return removed
