-- Says what blocks a log has, and how much memory some of them take.
--   KEYS[1] meta
--   KEYS[2] news
--   KEYS[3] full
--   KEYS[4] raw
--   KEYS[5..] the blocks
-- Returns { next, first, kept, entries a block, full blocks that are lists, sealed blocks that are not
-- compressed, bytes of each block }.
--@include log
local meta, news, full, raw = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'kept', 'block')
local problem = refuse(meta, facts, true)
if problem then
  return problem
end
local block, tail = block_of(meta, facts[5], not facts[1] and 0 or nil), end_of(meta, facts[2], facts[1])
local first = first_of(meta, facts[3], tail, facts[1])
local kept = facts[1] and kept_of(meta, facts[4], first, block, true) or 0
problem = facts[1] and refuse_end(meta, news, tail) or unbelieved
if problem then
  return problem
end
local lists, sealed = redis.pcall('ZCARD', full), redis.pcall('ZCARD', raw)
if is_error(lists) then
  return refusal(lists, full, 'does not hold blocks of a log')
end
if is_error(sealed) then
  return refusal(sealed, raw, 'does not hold blocks of a log')
end
local bytes = {}
for i = 5, #KEYS do
  local size = redis.pcall('MEMORY', 'USAGE', KEYS[i], 'SAMPLES', 0)
  if is_error(size) then
    -- fakeredis has no such command: the bytes of the entries, then.
    local kind = redis.call('TYPE', KEYS[i]).ok
    size = kind == 'string' and redis.call('STRLEN', KEYS[i]) or 0
    for _, entry in ipairs(kind == 'list' and redis.call('LRANGE', KEYS[i], 0, -1) or {}) do
      size = size + #entry
    end
  end
  bytes[#bytes + 1] = size or 0
end
return {
  tail,
  first,
  kept,
  block,
  lists,
  sealed,
  bytes,
}
