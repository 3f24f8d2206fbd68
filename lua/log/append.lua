-- Appends entries to a log, all or none, and wakes who waits for them.
-- KEYS: meta, news, full, raw, times, what a query has written (meta if none appends), waiting, the blocks to write, the blocks to evict,
--   state, line, turns and granted of each group in which somebody is believed to wait, as log.lua has them.
--   An append with ids: the producer's ids in place of what a query has written, and producers behind all others.
-- ARGV: entries a block, in how many groups one call wakes at most, backlog or '', number of the first block to write, how many of them
--   follow, number of the first block to evict, how many of them follow, partition or '', batch, how many rows of the batch the
--   partition has written before, digest of its rows up to the last of these entries, the highest end behind which they may come or '',
--   then the entries.
--   An append with ids: `ids` in place of a partition, then the window in ms, how many ids a producer has at most, how many ids stand
--   before the entries: one for all of them, or one for each.
-- Returns { offset of the first entry, kept, group in which somebody may wait, ... }: those whose keys were not passed are still to be
-- woken; or, having changed nothing, { -1, next, kept, block, group in which somebody may wait, ... } if the caller does not know the
-- end, or a group, while all of them could have been passed; or { -2, batch, rows, digest } of what the partition has written, if that
-- is not what was said; or, if ids were known, { -3, next, kept, offsets of all ids, group in which somebody may wait, ... }, or, having
-- changed nothing because all of them were, { -4, next, kept, offsets }.
--@include clock
--@include log
--@include free
local HEAD = 12
local meta, news, full, raw, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local written, waiting = KEYS[6], KEYS[7]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'block', 'first', 'kept', 'joined')
local problem = refuse(meta, facts)
if problem then
  return problem
end
local partition, batch, rows = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
if partition ~= '' and partition ~= 'ids' then
  local before = redis.pcall('HGET', written, partition)
  if is_error(before) then
    --@include layout
    return refusal(before, written, 'does not hold what a query has written')
  end
  local last_batch, last_rows, digest = batch, 0, ''
  if before then
    last_batch, last_rows, digest = string.match(before, '^(%d+) (%d+) (%x+)$')
    if not last_batch then
      --@include layout
      return layout_error(written, 'does not hold what a query has written')
    end
    last_batch, last_rows = tonumber(last_batch), tonumber(last_rows)
  end
  if last_batch > batch or (last_batch == batch and last_rows or 0) ~= rows then
    return { -2, last_batch, last_rows, digest }
  end
end
local block, joined = block_of(meta, facts[3], not facts[1] and tonumber(ARGV[1]) or nil), facts[6]
local tail = end_of(meta, facts[2], facts[1])
local first = first_of(meta, facts[4], tail, facts[1])
local kept = kept_of(meta, facts[5], first, block, facts[1])
stored(meta, 'joined', joined, 0, MOST_STORED * 100, 0)
-- Elsewhere the length of the block tells.
problem = tail % block == 0 and facts[1] and refuse_end(meta, news, tail) or unbelieved
if problem then
  return problem
end
local number, keys = tonumber(ARGV[4]), tonumber(ARGV[5])
local evicted, evicted_keys = tonumber(ARGV[6]), tonumber(ARGV[7])
local count, at = #ARGV - HEAD, now()
-- The entries stand in this table, behind this place.
local entries, head, last_key, known, window = ARGV, HEAD, #KEYS, nil, nil
if partition == 'ids' then
  --@include ids
  last_key = last_key - 1
  problem, known = look_at_producer(written, KEYS[#KEYS], producer_of(meta, written), tail, at)
  problem = problem or look_for_ids(written, known, ARGV, HEAD + 1, tonumber(ARGV[11]))
  window = window_of(meta, batch)
  if problem or unbelieved then
    return problem or unbelieved
  end
  entries, head, count = known.entries, known.head, known.count
  if count == 0 then
    return { -4, tail, kept, known.offsets }
  end
end
local stop = tail + count
local low, high = math.floor(tail / block), math.floor((stop - 1) / block)
local groups, passed, woken, unknown = 8 + keys + evicted_keys, {}, {}, 0
-- A log that no group has ever joined is not asked for those who wait.
local names = joined and joined ~= '0' and redis.pcall('ZRANGEBYSCORE', waiting, '(' .. whole(at), whole(at + DAY_MS)) or {}
if is_error(names) then
  --@include layout
  return refusal(names, waiting, 'does not hold the groups of a log in which somebody waits')
end
local function with_names(reply)
  for i = 1, #names do
    reply[#reply + 1] = names[i]
  end
  return reply
end
for i = groups, last_key, 4 do
  -- All keys begin alike: what is behind `group:` in that of the state is the group.
  passed[string.sub(KEYS[i], #meta + 3)] = i
end
for i = 1, #names do
  local index = passed[names[i]]
  if index then
    woken[#woken + 1] = index
  else
    unknown = unknown + 1
    if redis.call('HEXISTS', meta, 'group:' .. names[i]) == 0 then
      --@include layout
      return layout_error(waiting, 'does not hold the groups of a log in which somebody waits')
    end
  end
end
if
  block ~= tonumber(ARGV[1])
  or low < number
  or high >= number + keys
  or (ARGV[12] ~= '' and tail > tonumber(ARGV[12]))
  or (unknown > 0 and #names <= tonumber(ARGV[2]))
then
  return with_names({ -1, tail, kept, block })
end
if ARGV[3] ~= '' or stop % block < count then
  --@include free
  problem = refuse_sets(full, raw, times)
else
  problem = refuse_key('ZCARD', times, 'blocks of a log')
end
if problem then
  return problem
end
if stop > MOST_STORED then
  --@include layout
  return layout_error(meta, 'has no offsets left for so many entries: go on in another log')
end
for each = low, high do
  local key = KEYS[8 + each - number]
  local length = redis.pcall('LLEN', key)
  if is_error(length) then
    --@include layout
    return refusal(length, key, 'does not hold the entries that the log has there')
  end
  if length ~= (each == low and tail - low * block or 0) then
    --@include layout
    return layout_error(key, 'does not hold the entries that the log has there')
  end
end
if woken[1] then
  --@include log
  problem, woken = with_lines(KEYS, woken)
  if problem then
    return problem
  end
end
-- A full server refuses the first write of a script or none of them.
-- Only the last of the news counts: to keep exactly one, the server would pass over those that it has deleted.
local ends, moment, told = whole(stop), whole(at), nil
if tail % NEWS_KEPT + count < NEWS_KEPT then
  told = redis.pcall('XADD', news, ends .. '-0', 'n', '1')
else
  told = redis.pcall('XADD', news, 'MAXLEN', '~', 1, ends .. '-0', 'n', '1')
end
if is_error(told) then
  -- Not a text in fakeredis.
  local why = tostring(told.err)
  if string.find(why, 'WRONGTYPE', 1, true) or string.find(why, 'equal or smaller', 1, true) then
    --@include layout
    return layout_error(news, 'does not hold the news of this log')
  end
  return told
end
local argument = head + 1
for each = low, high do
  local key = KEYS[8 + each - number]
  -- The last argument that this block has room for.
  local last = head + math.min(count, (each + 1) * block - tail)
  while argument <= last do
    -- unpack() has its limits.
    local most = math.min(last, argument + 3999)
    redis.call('RPUSH', key, unpack(entries, argument, most))
    argument = most + 1
  end
  redis.call('ZADD', times, moment, whole(each))
  if (each + 1) * block <= stop then
    redis.call('ZADD', full, moment, whole(each))
  end
end
if not facts[1] then
  --@include log
  make_log(meta, whole(block), new_epoch())
end
redis.call('HSET', meta, 'next', ends)
if known then
  --@include ids
  note_ids(written, KEYS[#KEYS], known, window, rows)
  redis.call('HSET', meta, 'ids', whole(window))
elseif partition ~= '' then
  redis.call('HSET', written, partition, whole(batch) .. ' ' .. whole(rows + count) .. ' ' .. ARGV[11])
  -- Both keys begin alike; so delete() finds it.
  redis.call('HSET', meta, string.sub(written, #meta - 3), '1')
end
if ARGV[3] ~= '' then
  --@include free
  local boundary = math.floor((stop - ARGV[3]) / block)
  if boundary * block > first then
    first = boundary * block
    redis.call('HSET', meta, 'first', whole(first))
  end
  local left = free_blocks(KEYS, full, raw, times, kept, math.floor(first / block), 8 + keys, evicted, evicted_keys)
  -- A small backlog may leave little of the batch itself.
  left = free_blocks(KEYS, full, raw, times, left, math.floor(first / block), 8, number, keys)
  if left > kept then
    kept = left
    redis.call('HSET', meta, 'kept', whole(kept))
  end
end
if woken[1] then
  --@include log
  wake_all(KEYS, woken, at, stop, first)
end
if known and #known.fresh < 2 * #known.offsets then
  return with_names({ -3, stop, kept, known.offsets })
end
return with_names({ tail, kept })
