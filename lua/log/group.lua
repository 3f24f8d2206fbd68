--@library
-- The beginning of every script on a group of a log.
--   meta, waiting, news: of the log; line, turns, granted: as in log.lua
--   state: a hash: mark, kind, epoch (of the log), offset (of the entry to hand out next), turn, delivery (the numbers
--   given last), lost (entries evicted before they were handed out)
--   pending: a sorted set: offset with 16 digits, so that those of one moment are in order -> when (ms) it was handed out
--   attempts: a hash: offset -> "attempts delivery member"; dead: a hash: offset -> the entry and its history; revived: a
--   hash: offset -> an entry that was dead
--@include log

-- How often an entry may be handed out, as structures/log/group_reading.py says it, and by seeks back once more each.
local MOST_ATTEMPTS = 100000000

-- Refuses what is no group, before anything is written. Returns an error reply or nil.
local function refuse_all(state, line, turns, granted, pending, attempts, dead, revived, waiting)
  local problem = refuse_group(state, line, turns, granted)
    or refuse_key('ZCARD', pending, 'the pending entries of a group of a log')
    or refuse_key('ZCARD', waiting, 'the groups of a log in which somebody waits')
  for _, key in ipairs({ attempts, dead, revived }) do
    problem = problem or refuse_key('HLEN', key, 'entries of a group of a log')
  end
  return problem
end

-- Returns a reply, if there is no such group ({ -1 }) or one of another kind ({ -2, kind }); else nil and a table of
-- what holds: tail, first and block of the log; offset of the group; idle and most of one that is acknowledged. name and
-- kind: the group's, plain or "acknowledged:<idle ms>:<most attempts>"; reads: whether the script only reads.
local function open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, name, kind, reads)
  local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first', 'block', 'epoch', 'group:' .. name)
  local problem = refuse(meta, facts, reads) or refuse_all(state, line, turns, granted, pending, attempts, dead, revived, waiting)
  if problem then
    return problem
  end
  local own = redis.call('HMGET', state, 'mark', 'kind', 'epoch', 'offset')
  epoch_of(meta, facts[5], facts[1])
  epoch_of(state, own[3], own[1])
  if unbelieved then
    return unbelieved
  end
  -- The state of a log that was deleted and made anew says nothing of this one.
  if not facts[6] or not own[1] or own[3] ~= facts[5] then
    return { -1 }
  end
  if own[2] ~= kind then
    return { -2, own[2] }
  end
  local idle, most = string.match(own[2], '^acknowledged:(%d+):(%d+)$')
  local tail = end_of(meta, facts[2], true)
  local first, block = first_of(meta, facts[3], tail, true), block_of(meta, facts[4])
  local offset = stored(state, 'offset', own[4], 0, MOST_STORED)
  problem = refuse_end(meta, news, tail) or unbelieved
  if problem then
    return problem
  end
  return nil, {
    tail = tail, first = first, block = block, epoch = facts[5], offset = offset, idle = tonumber(idle), most = tonumber(most),
  }
end

-- open_group() for the usual state of a group: all that stands there is as it should be, nobody waits or has a turn, and no dead
-- entry was revived. Returns nil for any other state, which is then for open_group() to find, and writes nothing; or the log's tail,
-- first, block and epoch, and the group's offset and last delivery.
local function open_short(meta, state, line, turns, granted, dead, revived, waiting, news, name, kind)
  local facts = redis.pcall('HMGET', meta, 'mark', 'epoch', 'group:' .. name, 'block', 'next', 'first')
  local own = redis.pcall('HMGET', state, 'mark', 'epoch', 'kind', 'offset', 'turn', 'delivery', 'lost')
  local mark, epoch, tail, first, offset = facts[1], facts[2], facts[5], facts[6], own[4]
  if
    (mark ~= LOG_VERSION and mark ~= HOLES_VERSION)
    or own[1] ~= LOG_VERSION
    or not (epoch and facts[3] and facts[4] and tail and first and offset)
    or own[2] ~= epoch
    or own[3] ~= kind
    or #epoch < 16
    or #epoch > 20
    or string.find(epoch, '%D')
  then
    return nil
  end
  -- The same texts as stored() takes, but of 13 digits at most, as Lua's own texts of their sums have 14.
  local block, delivery = facts[4], own[6] or '0'
  local numbers = ' ' .. block .. ' ' .. tail .. ' ' .. first .. ' ' .. offset .. ' ' .. (own[5] or '0') .. ' ' .. delivery .. ' ' .. (own[7] or '0')
  if
    not string.find(numbers, '^ %d+ %d+ %d+ %d+ %d+ %d+ %d+$')
    or string.find(numbers, ' 0%d')
    or string.find(numbers, '%d%d%d%d%d%d%d%d%d%d%d%d%d%d')
  then
    return nil
  end
  block = tonumber(block)
  -- Most of the time none of these keys is there.
  if
    block < 1
    or block > MOST_BLOCK
    or tonumber(first) > tonumber(tail)
    or redis.call('EXISTS', line, turns, granted, revived, dead, waiting) > 0
      and (
        redis.call('EXISTS', line, turns, granted, revived) > 0
        or type(redis.pcall('HLEN', dead)) == 'table'
        or type(redis.pcall('ZCARD', waiting)) == 'table'
      )
  then
    return nil
  end
  local last = redis.pcall('XREVRANGE', news, '+', '-', 'COUNT', 1)
  if last.err or (last[1] and last[1][1] ~= tail .. '-0') then
    return nil
  end
  return tonumber(tail), tonumber(first), block, epoch, tonumber(offset), tonumber(delivery)
end

-- The offset that "first", "last" or a number, from the end if it is negative, stands for.
local function offset_of(text, tail, first)
  if text == 'first' then
    return first
  end
  if text == 'last' then
    return tail
  end
  local offset = tonumber(text)
  return offset < 0 and math.max(first, tail + offset) or offset
end

-- An offset as `pending` has it.
local function digits(offset)
  return string.format('%016.0f', tonumber(offset))
end

-- How many entries are due to be handed out again. Sets `unbelieved` if one was handed out long after now, and would never be due.
local function due_of(pending, group, at)
  if not group.idle then
    return 0
  end
  local last = redis.call('ZRANGE', pending, -1, -1, 'WITHSCORES')
  if last[1] then
    stored(pending, 'when an entry was handed out', last[2], 0, at + DAY_MS)
  end
  return redis.call('ZCOUNT', pending, '-inf', whole(at - group.idle))
end

-- The history of a pending entry, "attempts delivery member": the two numbers. 0 without one.
local function history_of(attempts, text)
  if not text then
    return 0
  end
  local tries, delivery = string.match(text, '^(%d+) (%d+) ')
  if not tries then
    disbelieve(attempts, 'the history of an entry', text, 'its attempts, delivery and member')
    return 0
  end
  return stored(attempts, 'the attempts of an entry', tries, 1, MOST_ATTEMPTS), delivery
end
