-- Evicts the entries of a log before an offset, and frees blocks that have none left.
-- KEYS: meta, news, full, raw, times, the blocks.
-- ARGV: entries a block, the offset, or '' to keep the last entries, then how many; number of the first block; epoch of the log,
--   if this goes on with an eviction, or ''.
-- Returns { entries evicted, first, kept, entries a block, next, epoch }; nothing is evicted if the epoch is another one.
--@include log
--@include free
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'block', 'first', 'kept', 'epoch')
local problem = refuse(facts) or refuse_sets()
if problem then
  return problem
end
if not facts[1] then
  return { 0, 0, 0, tonumber(ARGV[1]), 0, '' }
end
local tail, block = end_of(facts[2], true), block_of(facts[3])
local first = first_of(facts[4], tail, true)
local kept = kept_of(facts[5], first, block, true)
epoch_of(meta, facts[6], true)
problem = refuse_end(KEYS[2], tail) or unbelieved
if problem then
  return problem
end
if ARGV[5] ~= '' and ARGV[5] ~= facts[6] then
  return { 0, first, kept, block, tail, facts[6] }
end
local wanted = ARGV[2] ~= '' and tonumber(ARGV[2]) or tail - ARGV[3]
local start = math.max(first, math.min(wanted, tail))
local left = kept
if start > first then
  -- HSET is refused where memory is full, unless the script has written already: and this makes room.
  redis.call('HDEL', meta, 'first')
  redis.call('HSET', meta, 'first', whole(start))
end
if block == tonumber(ARGV[1]) then
  left = free_blocks(kept, math.floor(start / block), 6, tonumber(ARGV[4]), #KEYS - 5)
end
if left > kept then
  redis.call('HSET', meta, 'kept', whole(left))
end
return { start - first, start, left, block, tail, facts[6] }
