-- Reads entries of a log from an offset on, and says which there are.
-- KEYS: meta, the blocks.
-- ARGV: offset, from the end if negative, most entries, entries a block, number of the first block, most bytes, epoch of the blocks
--   that the caller has, '1' for each block that it has and '0' for others.
-- Returns { next, first, kept, entries a block, epoch, offset of the first entry, kinds, item, ... }, as read_entries() has them.
--@include log
--@include entries
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'kept', 'block', 'epoch')
local problem = refuse(facts, true)
if problem then
  return problem
end
local tail, first, kept = tonumber(facts[2] or 0), tonumber(facts[3] or 0), tonumber(facts[4] or 0)
local block = tonumber(facts[5] or ARGV[3])
local start, count = tonumber(ARGV[1]), tonumber(ARGV[2])
if start < 0 then
  start = math.max(tail + start, 0)
end
local reply = { tail, first, kept, block, facts[6] or '', start, '' }
if block == tonumber(ARGV[3]) then
  local known = ARGV[6] == facts[6] and ARGV[7] or ''
  local stop = math.min(start + count, tail)
  local items = read_entries(math.max(start, first), stop, block, 2, tonumber(ARGV[4]), #KEYS, known, tonumber(ARGV[5]))
  if is_error(items) then
    return items
  end
  reply[7] = items.kinds
  for i = 1, #items do
    reply[7 + i] = items[i]
  end
end
return reply
