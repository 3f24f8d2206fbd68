-- Puts a stream's deadlines into their index where they are missing: the index was lost, or an older
-- release has written the messages.
-- KEYS: meta, deadlines, stream. ARGV: number of the stream, id to begin at, entries to look at,
-- most to put in.
-- Returns { put in, id to go on at or an empty text at the end }.
--@include upkeep
local deadlines, stream = KEYS[2], KEYS[3]
local number, window, limit = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local problem, exists = refuse_meta()
problem = problem
  or refuse_key('ZCARD', deadlines, 'an index of deadlines')
  or refuse_key('XLEN', stream, 'a stream of a shuffle queue')
if problem then
  return problem
end
if not exists then
  return { 0, '' }
end
local entries, noted = redis.call('XRANGE', stream, ARGV[2], '+', 'COUNT', window), 0
for i = 1, #entries do
  local id = entries[i][1]
  if noted == limit then
    return { noted, id }
  end
  local _, deadline, tracked = own_of(entries[i][2])
  if deadline then
    local added = redis.pcall('ZADD', deadlines, 'NX', whole(deadline), deadline_member(number, id, tracked))
    -- A full server refuses it. Another slice will come.
    if is_error(added) then
      return { noted, '' }
    end
    noted = noted + added
  end
end
return { noted, #entries == window and '(' .. entries[window][1] or '' }
