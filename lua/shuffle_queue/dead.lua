-- Lists messages that a group of a shuffle queue has set aside, piece by piece, for a caller who
-- sorts them.
-- KEYS: meta, dead. ARGV: the cursor to go on from, '0' at first; the most to return. The reply may
-- have some tens more.
-- Returns { how many there are, next cursor or '0', { place, attempts, ms of the last delivery, ms
-- of its end, fields and values }, ... }.
--@include upkeep
--@include bounded
local dead = KEYS[2]
local problem = refuse_meta(true) or refuse_key('HLEN', dead, 'messages set aside')
if problem then
  return problem
end
local cursor, found = some_of(dead, ARGV[1], tonumber(ARGV[2]))
local listed = { redis.call('HLEN', dead), cursor }
for i = 1, #found, 2 do
  local parts = parts_of(found[i + 1])
  if not parts then
    return layout_error(dead, 'does not hold messages set aside')
  end
  local fields = {}
  for j = 4, #parts do
    fields[j - 3] = parts[j]
  end
  listed[#listed + 1] = { found[i], parts[1], parts[2], parts[3], fields }
end
return listed
