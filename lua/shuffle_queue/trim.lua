-- Deletes entries of one stream that every group has acknowledged, with their tracking ids.
-- KEYS: meta, tracking, deadlines, stream. ARGV: number of the stream, id to begin at, entries to
-- look at, most to delete.
-- Returns { deleted, id to go on at or an empty text at the end }.
--@include upkeep
local tracking, deadlines, stream = KEYS[2], KEYS[3], KEYS[4]
local number, from, window, limit = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local problem, exists = refuse_meta()
problem = problem
  or refuse_key('HLEN', tracking, 'tracking ids')
  or refuse_key('ZCARD', deadlines, 'an index of deadlines')
if problem then
  return problem
end
local readers, given = readers_of(stream), nil
if not exists or awaits_readers(stream, number, readers) then
  return { 0, '' }
end
-- Entries from there on have not been delivered to one of the groups.
for _, reader in pairs(readers) do
  local last = reader['last-delivered-id']
  if not given or is_after(given, last) then
    given = last
  end
end
local entries = redis.call('XRANGE', stream, from, given, 'COUNT', window)
if #entries == 0 then
  return { 0, '' }
end
local first, last = entries[1][1], entries[#entries][1]
local held = {}
for name in pairs(readers) do
  local found = redis.call('XPENDING', stream, name, first, last, window)
  for _, entry in ipairs(found) do
    held[entry[1]] = true
  end
  -- Deleted entries can be pending too, so nothing is known beyond the last one that was seen.
  if #found == window and is_after(last, found[window][1]) then
    last = found[window][1]
  end
end
local deleted, place = 0, ''
for i, entry in ipairs(entries) do
  if is_after(entry[1], last) or deleted >= limit then
    place = entry[1]
    break
  end
  if not held[entry[1]] then
    delete_entry(stream, tracking, deadlines, number, entry[1], entry[2])
    deleted = deleted + 1
  end
  if i == window then
    place = '(' .. entry[1]
  end
end
return { deleted, place }
