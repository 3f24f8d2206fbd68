-- Evicts the entries of a log before an offset, and frees blocks that have none left.
--   KEYS[1] meta
--   KEYS[2] news
--   KEYS[3] full
--   KEYS[4] raw
--   KEYS[5] times
--   KEYS[6] the last block
--   KEYS[7..] the blocks from some on
--   ARGV[1] entries a block
--   ARGV[2] the offset, or '' to keep the last entries
--   ARGV[3] how many of these
--   ARGV[4] number of the first block
--   ARGV[5] epoch of the log, if this goes on with an eviction, or ''
--   ARGV[6] the log's end, as the caller knows it
--   ARGV[7] 1 if this call was told so, and later entries stay
-- Returns { entries evicted, first, kept, entries a block, next, epoch, blocks freed }; nothing is evicted if
-- the epoch is another one. If the end of the log decides what goes, and its block is not the one that was
-- passed, it evicts -1 entries, and changes nothing.
--@include log
--@include free
local meta, news, full, raw, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'block', 'first', 'kept', 'epoch')
local problem = refuse(meta, facts) or refuse_sets(full, raw, times)
if problem then
  return problem
end
if not facts[1] then
  return { 0, 0, 0, tonumber(ARGV[1]), 0, '', 0 }
end
local tail, block = end_of(meta, facts[2], true), block_of(meta, facts[3])
local first = first_of(meta, facts[4], tail, true)
local kept = kept_of(meta, facts[5], first, block, true)
epoch_of(meta, facts[6], true)
problem = refuse_end(meta, news, tail) or unbelieved
if problem then
  return problem
end
if ARGV[5] ~= '' and ARGV[5] ~= facts[6] then
  return { 0, first, kept, block, tail, facts[6], 0 }
end
-- A log may grow by more than a block in each round trip.
local stop = ARGV[7] == '1' and math.min(tail, ARGV[6]) or tail
local wanted = ARGV[2] ~= '' and tonumber(ARGV[2]) or stop - ARGV[3]
local start = math.max(first, math.min(wanted, tail))
if start > first and ARGV[2] == '' then
  -- A wrong end would push out everything, and its block is not there.
  if block ~= tonumber(ARGV[1]) or math.floor((stop - 1) / block) ~= math.floor((ARGV[6] - 1) / block) then
    return { -1, first, kept, block, tail, facts[6], 0 }
  end
  if redis.call('EXISTS', KEYS[6]) == 0 then
    disbelieve(meta, 'next', facts[2], 'the end of the entries that are there')
    return unbelieved
  end
end
local left, freed = kept, 0
if start > first then
  -- HSET is refused where memory is full, unless the script has written already: and this makes room.
  redis.call('HDEL', meta, 'first')
  redis.call('HSET', meta, 'first', whole(start))
end
if block == tonumber(ARGV[1]) then
  left, freed = free_blocks(KEYS, full, raw, times, kept, math.floor(start / block), 7, tonumber(ARGV[4]), #KEYS - 6)
end
if left > kept then
  redis.call('HSET', meta, 'kept', whole(left))
end
return { start - first, start, left, block, tail, facts[6], freed }
