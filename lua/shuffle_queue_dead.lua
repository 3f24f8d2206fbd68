-- Lists messages that a group of a shuffle queue has set aside, at random if not all are asked for.
-- KEYS: meta, dead. ARGV: how many at most.
-- Returns { { place, attempts, ms of the last delivery, ms of its end, fields and values }, ... }.
--@include shuffle_queue_upkeep
--@include shuffle_queue_grave
local dead = KEYS[2]
local problem = refuse_meta() or refuse_key('HLEN', dead, 'messages set aside')
if problem then
  return problem
end
local found, listed = redis.call('HRANDFIELD', dead, ARGV[1], 'WITHVALUES') or {}, {}
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
