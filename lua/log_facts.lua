-- Says what blocks a log has, and how much memory some of them take.
-- KEYS: meta, full, raw, the blocks.
-- ARGV: nothing.
-- Returns { next, first, kept, entries a block, full blocks that are lists, sealed blocks that are not compressed, bytes of each block }.
--@include log
local full, raw = KEYS[2], KEYS[3]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'kept', 'block')
local problem = refuse(facts)
if problem then
  return problem
end
local lists, sealed = redis.pcall('ZCARD', full), redis.pcall('ZCARD', raw)
if is_error(lists) then
  return layout_error(full, 'does not hold blocks of a log')
end
if is_error(sealed) then
  return layout_error(raw, 'does not hold blocks of a log')
end
local bytes = {}
for i = 4, #KEYS do
  bytes[#bytes + 1] = redis.call('MEMORY', 'USAGE', KEYS[i], 'SAMPLES', 0) or 0
end
return {
  tonumber(facts[2] or 0),
  tonumber(facts[3] or 0),
  tonumber(facts[4] or 0),
  tonumber(facts[5] or 0),
  lists,
  sealed,
  bytes,
}
