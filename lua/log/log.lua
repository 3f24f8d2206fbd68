--@library
-- The part that all scripts on a log share: the facts that its `meta` holds.
--   meta: a hash: mark, block, next, first, kept, epoch, joined, group:<G>, written:<Q>
--@include layout
--@include values
--@include stored

-- The value of `mark` in a log's meta.
local LOG_VERSION = '1'
-- Its value in a log some of whose blocks have holes; the newest one that this release knows.
local HOLES_VERSION = '2'
-- Its value in this log, which may be of a newer version: refuse() sets it.
local log_mark = LOG_VERSION

-- The news of a log are trimmed by one append of so many entries.
local NEWS_KEPT = 64

-- Refuses facts, which begin with the mark, that are no log's. reads: whether the script only reads.
-- Returns an error reply or nil.
local function refuse(meta, facts, reads)
  if facts.err then
    --@include layout
    return refusal(facts, meta, 'does not hold the facts of a log')
  end
  if facts[1] then
    if facts[1] ~= LOG_VERSION then
      --@include layout
      log_mark = facts[1]
      return (refuse_version(meta, facts[1], HOLES_VERSION, reads))
    end
  elseif redis.call('EXISTS', meta) == 1 then
    --@include layout
    return layout_error(meta, 'does not hold the facts of a log')
  end
end

-- The numbers in meta. is_there: whether there is a log, which has all of them.

-- How many entries a block has at most, as structures/log/base.py says it.
local MOST_BLOCK = 100000

local function end_of(meta, text, is_there)
  return stored(meta, 'next', text, 0, MOST_STORED, not is_there and 0 or nil)
end

local function block_of(meta, text, absent)
  return stored(meta, 'block', text, 1, MOST_BLOCK, absent)
end

-- Nothing is evicted that has not been appended.
local function first_of(meta, text, tail, is_there)
  return stored(meta, 'first', text, 0, tail, not is_there and 0 or nil)
end

-- No block is freed that has an entry.
local function kept_of(meta, text, first, block, is_there)
  return stored(meta, 'kept', text, 0, math.floor(first / block), not is_there and 0 or nil)
end

-- The mark of a log's making; '' for none.
local function epoch_of(key, text, is_there)
  if text and not (string.find(text, '^%d+$') and #text >= 16 and #text <= 20) or is_there and not text then
    disbelieve(key, 'epoch', text, 'a number of 16 digits')
  end
  return text or ''
end

-- Sets `unbelieved` if the news of a log say that it ends elsewhere. Returns an error reply about foreign news, or nil. A look at the
-- blocks does not tell, if the end that meta says is the beginning of a block.
local function refuse_end(meta, news, tail)
  local last = redis.pcall('XREVRANGE', news, '+', '-', 'COUNT', 1)
  if is_error(last) then
    --@include layout
    return refusal(last, news, 'does not hold the news of this log')
  end
  local id = last[1] and last[1][1]
  if id and id ~= whole(tail) .. '-0' then
    --@include layout
    local told = tonumber(string.match(id, '^(%d+)%-0$') or nil)
    if not told or told > MOST_STORED then
      return layout_error(news, 'does not hold the news of this log')
    end
    stored(meta, 'next', whole(tail), told, told)
  end
end

-- make_log(): the facts of a log that has no entry yet.

-- Returns a mark that tells this log from one of the same name that was deleted.
local function new_epoch()
  local clock = redis.call('TIME')
  return string.format('%010d%06d', clock[1], clock[2])
end

-- Returns the reply, which is an error where the server is full.
local function make_log(meta, block, epoch)
  return redis.pcall('HSET', meta, 'mark', LOG_VERSION, 'block', block, 'next', '0', 'first', '0', 'kept', '0', 'epoch',
    epoch, 'joined', '0')
end

-- The offset that a member of `pending` has as 16 digits.
local function pending_offset(key, text)
  if #text ~= 16 or string.find(text, '%D') then
    disbelieve(key, 'an offset', text, 'a number of 16 digits')
    return 0
  end
  return stored(key, 'an offset', whole(tonumber(text)), 0, MOST_STORED)
end

-- Turns wake the blocked members of a log's group: the one that has waited longest is woken first.
--   state    a hash, the group's own; line, a sorted set: member that waits, or was woken and has not looked yet ->
--            until when (ms) it is believed to be there, unless it says so again
--   turns    a list: a number for each turn; BLPOP gives one to the member that has been blocked longest
--   granted  a sorted set: turn -> when (ms) it was given; until it is used, or too old, others leave an entry for it
-- A member that waits is in the line since the very look that found nothing. So everything that
-- comes after that look finds it there, and BLPOP finds a turn that was given before it. These four
-- keys are passed in this order.
--   waiting  a sorted set, of the log: group -> until when (ms) it is believed that anybody waits there. Put there by the same look,
--            and never for a shorter time than in the line; so an append finds all whom it has to wake, and looks at no other group

-- A member that was woken and does not look for so long withholds nothing any more.
local TURN_MS = 1000
-- No turn and no wait lasts until so long after now: what says so would never end.
local DAY_MS = 86400000

-- Refuses what is no group of a log. Returns an error reply or nil.
local function refuse_group(state, line, turns, granted)
  local known = redis.pcall('HMGET', state, 'mark', 'offset', 'turn', 'delivery', 'lost')
  if is_error(known) then
    --@include layout
    return refusal(known, state, 'does not hold the state of a group of a log')
  end
  local mark = known[1]
  for i, field in ipairs({ 'offset', 'turn', 'delivery', 'lost' }) do
    stored(state, field, known[i + 1], 0, MOST_STORED, 0)
  end
  if unbelieved then
    return unbelieved
  end
  if mark and mark ~= LOG_VERSION and mark ~= log_mark then
    --@include layout
    return layout_error(state, 'does not hold the state of a group of a log')
  end
  return refuse_key('ZCARD', line, 'who waits in a group of a log')
    or refuse_key('LLEN', turns, 'the turns of a group of a log')
    or refuse_key('ZCARD', granted, 'when turns of a group of a log were given')
end

-- Takes back turns that nobody has used in time. Returns how many are still given.
local function live_turns(turns, granted, at)
  redis.call('ZREMRANGEBYSCORE', granted, '-inf', whole(at - TURN_MS))
  local live = redis.call('ZCARD', granted)
  if live > 0 then
    -- One of a time to come would be given for ever.
    live = live - redis.call('ZREMRANGEBYSCORE', granted, whole(at + DAY_MS), '+inf')
  end
  if live == 0 then
    redis.call('DEL', turns)
  else
    -- The last turns are still given; the turns before them would wake for nothing.
    redis.call('LTRIM', turns, -live, -1)
  end
  return live
end

-- Wakes as many of those who wait as there are entries that are nobody's turn yet.
-- tail and first: of the log, as they are now; due: how many entries are to be handed out again.
local function wake(state, line, turns, granted, at, tail, first, due)
  if redis.call('ZCARD', line) == 0 then
    return
  end
  local offset = redis.call('HGET', state, 'offset')
  local available = math.max(0, tail - math.max(tonumber(offset or tail), first)) + due
  if available < 1 then
    return
  end
  redis.call('ZREMRANGEBYSCORE', line, '-inf', whole(at))
  redis.call('ZREMRANGEBYSCORE', line, whole(at + DAY_MS), '+inf')
  local waiting = redis.call('ZCARD', line)
  local new = math.min(waiting, available) - live_turns(turns, granted, at)
  if new < 1 then
    return
  end
  local last = tonumber(redis.call('HINCRBY', state, 'turn', whole(new)))
  local numbers, given = {}, {}
  for turn = last - new + 1, last do
    numbers[#numbers + 1] = whole(turn)
    given[#given + 1], given[#given + 2] = whole(at), whole(turn)
    -- unpack() has its limits.
    if #numbers == 1000 or turn == last then
      redis.call('ZADD', granted, unpack(given))
      redis.call('RPUSH', turns, unpack(numbers))
      numbers, given = {}, {}
    end
  end
end

-- keys: four of each group, in the order above; indices: of the first key of each of some groups. Returns an error reply about what is no group, or nil; and the indices of those
-- groups in whose line is anybody.
local function with_lines(keys, indices)
  local found = {}
  for i = 1, #indices do
    local index = indices[i]
    -- Most of those who were waiting a moment ago are busy: one look for these.
    if redis.pcall('ZCARD', keys[index + 1]) ~= 0 then
      local problem = refuse_group(keys[index], keys[index + 1], keys[index + 2], keys[index + 3])
      if problem then
        return problem
      end
      found[#found + 1] = index
    end
  end
  return nil, found
end

-- Wakes those who wait in these groups.
local function wake_all(keys, indices, at, tail, first)
  for i = 1, #indices do
    local index = indices[i]
    wake(keys[index], keys[index + 1], keys[index + 2], keys[index + 3], at, tail, first, 0)
  end
end
