-- Reads entries of a log from an offset on, and says which there are.
-- KEYS: meta, news, the blocks.
-- ARGV: offset, from the end if negative, most entries, entries a block, number of the first block, most bytes, epoch of the blocks
--   that the caller has, '1' for each block that it has and '0' for others.
-- Returns { next, first, kept, entries a block, epoch, offset of the first entry, kinds, item, ... }, as read_entries() has them.
--@include log
--@include entries
local meta, news = KEYS[1], KEYS[2]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'kept', 'block', 'epoch')
local problem = refuse(meta, facts, true)
if problem then
  return problem
end
local block = block_of(meta, facts[5], not facts[1] and tonumber(ARGV[3]) or nil)
local tail = end_of(meta, facts[2], facts[1])
local first = first_of(meta, facts[3], tail, facts[1])
local kept = kept_of(meta, facts[4], first, block, facts[1])
epoch_of(meta, facts[6], facts[1])
local start, count = tonumber(ARGV[1]), tonumber(ARGV[2])
if start < 0 then
  start = math.max(tail + start, 0)
end
-- A read from the middle does not depend on the end.
if facts[1] and (count == 0 or start + count >= tail) then
  problem = refuse_end(meta, news, tail)
end
if problem or unbelieved then
  return problem or unbelieved
end
local reply = { tail, first, kept, block, facts[6] or '', start, '' }
if block == tonumber(ARGV[3]) then
  local known = ARGV[6] == facts[6] and ARGV[7] or ''
  local stop = math.min(start + count, tail)
  local items = read_entries(KEYS, math.max(start, first), stop, block, 3, tonumber(ARGV[4]), #KEYS, known, tonumber(ARGV[5]))
  if is_error(items) then
    return items
  end
  reply[7] = items.kinds
  for i = 1, #items do
    reply[7 + i] = items[i]
  end
end
return reply
