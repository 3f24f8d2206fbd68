-- Evicts the oldest blocks of a log that is larger, or whose entries are older, than wanted, and frees what
-- evictions have left.
--   KEYS[1] meta
--   KEYS[2] news
--   KEYS[3] full
--   KEYS[4] raw
--   KEYS[5] times
--   KEYS[6] the last block at the look
--   KEYS[7..] state and pending of each group whose entries are spared; then blocks, the lowest that may take
--     memory first
--   ARGV[1] entries a block
--   ARGV[2] epoch
--   ARGV[3] `joined`, or '' to spare no group
--   ARGV[4] most age in ms, or ''
--   ARGV[5] most entries, or ''
--   ARGV[6] number of the block before which a slice may evict because all is too large, or ''
--   ARGV[7] number of the one before which that would be all of it
--   ARGV[8] number of the first block in KEYS
--   ARGV[9] how many of KEYS are the groups'
--   ARGV[10] 1 to change nothing
--   ARGV[11] the log's end at the look
-- Returns { 1, blocks freed, entries evicted, blocks still to be freed, for how many ms the oldest has been
-- due }, on a dry run what it would do; { 0 } if there is no log, or was none at the look, whose epoch is ''
-- then; { -1 } if there is another one, or a new group.
--@include clock
--@include log
--@include free
-- A group with more in its members' hands than this is taken to need all that is there.
local meta, news, full, raw, times = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local MOST_PENDING = 10000
-- So many blocks behind its own a slice looks at, for one whose time is known.
local MOST_TIMELESS = 1000
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'block', 'first', 'kept', 'epoch', 'joined')
local problem = refuse(meta, facts, ARGV[10] == '1') or refuse_sets(full, raw, times)
if problem then
  return problem
end
epoch_of(meta, facts[6], facts[1])
if unbelieved then
  return unbelieved
end
if not facts[1] or ARGV[2] == '' then
  return { 0 }
end
local tail, block = end_of(meta, facts[2], true), block_of(meta, facts[3])
local first = first_of(meta, facts[4], tail, true)
local kept = kept_of(meta, facts[5], first, block, true)
problem = refuse_end(meta, news, tail) or unbelieved
if problem then
  return problem
end
if facts[3] ~= ARGV[1] or facts[6] ~= ARGV[2] or (ARGV[3] ~= '' and (facts[7] or '0') ~= ARGV[3]) then
  return { -1 }
end
if (ARGV[5] ~= '' or ARGV[6] ~= '') and tonumber(ARGV[11]) > first and redis.call('EXISTS', KEYS[6]) == 0 then
  -- As in evict.lua: a wrong end would push out everything.
  disbelieve(meta, 'next', facts[2], 'the end of the entries that are there')
  return unbelieved
end
local number, group_keys, is_dry = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] == '1'
local keys = #KEYS - 6 - group_keys
local at, oldest_ms = now(), 0
-- The block that is being written: full blocks are below it.
local open = math.floor(tail / block)

local function time_of(each)
  return tonumber(redis.call('ZSCORE', times, whole(each)) or nil)
end

-- The lowest available offset that a group has not been given yet, or whose entry is in the hands of a member.
local function lowest_needed()
  local lowest = tail
  for i = 7, 6 + group_keys, 2 do
    local state, pending = KEYS[i], KEYS[i + 1]
    local about = redis.pcall('HMGET', state, 'mark', 'epoch', 'offset')
    local size = redis.pcall('ZCARD', pending)
    if about.err then
      return refusal(about, state, 'does not hold the state of a group of a log')
    end
    if about[1] and about[1] ~= LOG_VERSION and about[1] ~= log_mark then
      return layout_error(state, 'does not hold the state of a group of a log')
    end
    if is_error(size) then
      return refusal(size, pending, 'does not hold the pending entries of a group of a log')
    end
    epoch_of(state, about[2])
    -- The state of a log that was deleted and made anew says nothing of this one.
    if about[2] == facts[6] then
      lowest = math.min(lowest, math.max(first, stored(state, 'offset', about[3], 0, MOST_STORED)))
      if size > MOST_PENDING then
        lowest = first
      elseif size > 0 then
        for _, text in ipairs(redis.call('ZRANGE', pending, 0, -1)) do
          local offset = pending_offset(pending, text)
          -- An entry that is evicted already, or kept elsewhere by a revival, needs nothing here.
          lowest = offset < first and lowest or math.min(lowest, offset)
        end
      end
    end
  end
  return unbelieved or lowest
end

-- Where the log is to begin: evictions so far, and each bound in turn. due: the same in blocks, without the slice's own bound.
local start, due = first, math.floor(first / block)
if ARGV[4] ~= '' then
  local horizon = at - ARGV[4]
  local each, last = math.floor(first / block), number + keys - 1
  while each <= math.min(open, last + MOST_TIMELESS) do
    local came = time_of(each)
    -- One whose time was lost, or is yet to come since the clock was set back, is as old as the next one at least.
    if came and came <= at then
      if came > horizon then
        break
      end
      start = math.max(start, math.min((each + 1) * block, tail))
      if each >= last then
        break
      end
    end
    each = each + 1
  end
  if start > first then
    local young = redis.call('ZCOUNT', times, '(' .. whole(horizon), whole(at))
    due = math.max(due, math.min(math.ceil(tail / block) - young, open))
  end
  local came = time_of(kept)
  if came and kept < open then
    oldest_ms = math.max(oldest_ms, horizon - came)
  end
end
if ARGV[5] ~= '' then
  local boundary = math.floor((tail - ARGV[5]) / block)
  start, due = math.max(start, boundary * block), math.max(due, boundary)
  if boundary > kept then
    -- It was too many when the entry came that stands so many behind the oldest block; its own block's time is no earlier.
    local came = time_of(math.floor(((kept + 1) * block - 1 + ARGV[5]) / block))
    oldest_ms = math.max(oldest_ms, came and at - came or 0)
  end
end
if ARGV[6] ~= '' then
  start, due = math.max(start, math.min(tonumber(ARGV[6]), open) * block), math.max(due, math.min(tonumber(ARGV[7]), open))
end
start = math.min(start, tail, math.max(first, (number + keys) * block))
if group_keys > 0 then
  local lowest = lowest_needed()
  if is_error(lowest) then
    return lowest
  end
  if lowest < start then
    start = math.max(first, math.floor(lowest / block) * block)
  end
  due = math.max(math.floor(first / block), math.min(due, math.floor(lowest / block)))
end
local stop = math.floor(start / block)
if is_dry then
  local freed = math.max(0, math.min(stop, number + keys) - kept)
  return { 1, freed, start - first, math.max(0, due - kept), oldest_ms }
end
local left = kept
if start > first then
  -- As in evict.lua: HSET is refused where memory is full, unless the script has written already.
  redis.call('HDEL', meta, 'first')
  redis.call('HSET', meta, 'first', whole(start))
end
left = free_blocks(KEYS, full, raw, times, kept, stop, 7 + group_keys, number, keys)
if left > kept then
  redis.call('HSET', meta, 'kept', whole(left))
end
return { 1, left - kept, start - first, math.max(0, due - left), oldest_ms }
