-- Hands out entries of a log to a member of a group: those that others have not acknowledged in time first,
-- then new ones.
--   KEYS[1] meta
--   KEYS[2] state
--   KEYS[3] line
--   KEYS[4] turns
--   KEYS[5] granted
--   KEYS[6] pending
--   KEYS[7] attempts
--   KEYS[8] dead
--   KEYS[9] revived
--   KEYS[10] waiting
--   KEYS[11] news
--   KEYS[12] the read's receipt
--   KEYS[13..] the blocks
--   ARGV[1] group
--   ARGV[2] kind
--   ARGV[3] how many entries at most
--   ARGV[4] by what name it waits or ''
--   ARGV[5] '1' if it will wait when there is nothing
--   ARGV[6] the turn that has woken it or ''
--   ARGV[7] the member
--   ARGV[8] entries a block
--   ARGV[9] number of the first block
--   ARGV[10] most bytes
--   ARGV[11] epoch of the blocks that the caller has
--   ARGV[12] '1' for each block that it has and '0' for others
--   ARGV[13] the read's number
-- Returns { 0, entries a block, epoch, next offset of the log, offset of the first new entry, how many are
-- new, delivery of the first one, attempts of the new ones if any was handed out before, { { offset,
-- attempts, delivery, entry or nil } handed out again, ... }, { offset, its history } of those handed out too
-- often, kinds, item, ... as read_entries() has them }; { 1, ms until to look again, ms until an entry is due
-- or -1 } if there is nothing; { 2, block, entries a block, epoch } if another block is needed; { 3 } if
-- another receipt is needed; and as open_group() does. A read that was granted entries before is answered by
-- these, as far as they are there and, in an acknowledged group, still the member's.
--@include clock
--@include group
--@include entries
local meta, state, line, turns, granted = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, attempts, dead, revived = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local waiting, news = KEYS[10], KEYS[11]
local member = ARGV[7]

-- Returns items and how many entries they are, from an offset on; or an error.
local function read_from(from, stop, block, epoch, room)
  local items, read = read_entries(KEYS, from, stop, block, 13, tonumber(ARGV[9]), #KEYS, ARGV[11] == epoch and ARGV[12] or '', room), 0
  if items.err then
    return items
  end
  for i = 1, #items do
    local kind = string.sub(items.kinds, i, i)
    if kind == 'L' then
      read = read + #items[i]
    elseif kind == 'R' then
      read = read + math.floor(#items[i][2] / 4)
    else
      read = math.min(stop - from, (math.floor((from + read) / block) + 1) * block - from)
    end
  end
  return items, read
end

-- The short path: new entries, none of which was handed out before, while none is due to be handed out again. Returns the reply; or
-- nil, having changed nothing, if anything else is to be done.
local function read_short()
  local tail, first, block, epoch, offset, before = open_short(
    meta, state, line, turns, granted, dead, revived, waiting, news, ARGV[1], ARGV[2]
  )
  if not tail or offset < first or ARGV[8] ~= block .. '' then
    return nil
  end
  local wanted = math.min(ARGV[3], tail - offset)
  -- A receipt that is not older than this read is another matter; and what is none may hold anything.
  local sent = redis.pcall('GET', KEYS[12])
  if sent then
    local number = not sent.err and string.match(sent, '^%d+')
    if not number or #number > 15 or tonumber(number) >= tonumber(ARGV[13]) then
      return nil
    end
  end
  local newest = redis.pcall('ZRANGE', pending, -1, -1, 'WITHSCORES')
  if wanted < 1 or newest.err then
    return nil
  end
  local idle, at = string.match(ARGV[2], '^acknowledged:(%d+)'), nil
  if idle then
    at = now()
    if newest[1] then
      local score = newest[2]
      if
        not string.find(score, '^[1-9]%d*$')
        or tonumber(score) > at + DAY_MS
        or redis.call('ZCOUNT', pending, '-inf', at - idle .. '') > 0
      then
        return nil
      end
    end
  elseif type(redis.pcall('HLEN', attempts)) == 'table' then
    return nil
  end
  local items, read = read_from(offset, offset + wanted, block, epoch, tonumber(ARGV[10]))
  if items.err or read < 1 then
    return nil
  end
  local members, histories = {}, {}
  if idle then
    local moment, offsets, ending = at .. '', {}, ' ' .. member
    for i = 1, read do
      -- Of all ways from a number to its text %d is the cheapest one by far.
      local text = string.format('%d', offset + i - 1)
      offsets[i] = text
      -- As digits() writes it. The last one first: while it is short, a sorted set looks for the place of each from its beginning.
      members[2 * i - 1], members[2 * i] = moment, string.format('%016d', offset + read - i)
      histories[2 * i - 1], histories[2 * i] = text, string.format('1 %d', before + i) .. ending
    end
    local earlier = redis.pcall('HMGET', attempts, unpack(offsets))
    if earlier.err then
      return nil
    end
    for i = 1, read do
      if earlier[i] then
        return nil
      end
    end
  end
  -- A full server refuses it, and has room for what begins with a removal.
  local written = redis.pcall('HSET', state, 'offset', offset + read .. '', 'delivery', before + read .. '')
  if type(written) == 'table' then
    return nil
  end
  if idle then
    redis.call('ZADD', pending, unpack(members))
    redis.call('HSET', attempts, unpack(histories))
  end
  redis.call('SET', KEYS[12], ARGV[13] .. ' ' .. offset .. ' ' .. read .. ' ' .. before + 1 .. ' ' .. epoch, 'PX', UNDER_WAY_MS)
  return { 0, block, epoch, tail, offset, read, before + 1, {}, {}, {}, items.kinds, unpack(items) }
end

local answer = read_short()
if answer then
  return answer
end
do
  --@include clock
  --@include group
  --@include entries
  --@include receipt
  local problem, group = open_group(meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news, ARGV[1], ARGV[2])
  if problem then
    return problem
  end
  local at = now()
  local count, name, turn = tonumber(ARGV[3]), ARGV[4], ARGV[6]
  local block, tail = group.block, group.tail
  local start = math.max(group.offset, group.first)

  -- Returns the reply that hands out entries.
  local function handing_out(from, read, delivery, earlier, again, condemned, items)
    local reply = { 0, block, group.epoch, tail, from, read, delivery, earlier, again, condemned, items.kinds }
    for i = 1, #items do
      reply[11 + i] = items[i]
    end
    return reply
  end

  local receipt, asked = KEYS[12], tonumber(ARGV[13])
  local sent, noted = receipt_of(redis.pcall('GET', receipt))
  if sent == asked then
    local again, items, read = {}, { kinds = '' }, 0
    local from, most, delivery, epoch = string.match(noted, '^ (%d+) (%d+) (%d+) (%d+)')
    if epoch ~= group.epoch then
      -- Its entries were those of a log that is no more.
      from, most, noted = 0, 0, ''
    end
    local stop = math.min(tail, from + math.min(most, 1000))
    local low = math.max(from, group.first)
    delivery = (tonumber(delivery) or 0) + low - from

    -- An entry that others have by now, or that is settled, is not handed out.
    local function add_mine(offset, number)
      local history = redis.call('HGET', attempts, offset)
      local tries = history and string.match(history, '^(%d+) ')
      if tries and history == tries .. ' ' .. number .. ' ' .. member then
        -- Its lease begins again, because somebody hears of it only now. A full server allows a removal, and then the rest.
        redis.call('HDEL', state, '')
        redis.call('ZADD', pending, whole(at), digits(offset))
        again[#again + 1] = { tonumber(offset), tonumber(tries), tonumber(number), redis.call('HGET', revived, offset) }
      end
    end

    for offset, _, number in string.gmatch(noted, '(%d+):(%d+):(%d+)') do
      add_mine(offset, number)
    end
    if group.idle then
      for offset = low, stop - 1 do
        add_mine(whole(offset), whole(delivery + offset - low))
      end
    elseif low < stop then
      items, read = read_from(low, stop, block, group.epoch, MOST_STORED)
      if is_error(items) then
        return items
      end
    end
    if read > 0 or again[1] then
      return handing_out(low, read, delivery, {}, again, {}, items)
    end
  end
  if sent and sent >= asked then
    -- It may be from long ago, when nobody waits for it any more. Any other caller takes another receipt.
    return { 3 }
  end
  local fresh, due = math.max(0, tail - start), due_of(pending, group, at)
  if unbelieved then
    return unbelieved
  end
  local live = live_turns(turns, granted, at)
  local available = fresh + due
  -- An entry is left for each turn of others; a member with a turn takes its share.
  local most = available - live
  if turn ~= '' and redis.call('ZSCORE', granted, turn) then
    most = math.max(1, math.floor(available / live))
  end
  most = math.min(most, count, available)

  -- Says that this member does not wait any more.
  local function leave()
    if name ~= '' then
      redis.call('ZREM', line, name)
    end
    if turn ~= '' then
      redis.call('ZREM', granted, turn)
    end
  end

  local again, condemned, lost = {}, {}, 0
  local chosen = {}
  if most > 0 and due > 0 then
    -- Some more than wanted, since some may have to be set aside.
    local found = redis.call('ZRANGEBYSCORE', pending, '-inf', whole(at - group.idle), 'LIMIT', 0, most + 16)
    for i = 1, #found do
      found[i] = whole(pending_offset(pending, found[i]))
    end
    local histories, tried = redis.call('HMGET', attempts, unpack(found)), {}
    for i = 1, #found do
      tried[i] = history_of(attempts, histories[i])
    end
    if unbelieved then
      return unbelieved
    end
    for i = 1, #found do
      local tries = tried[i]
      local is_kept = redis.call('HEXISTS', revived, found[i]) == 1
      if tonumber(found[i]) >= start then
        -- After a seek back its turn comes with the new ones, and only then.
      elseif tonumber(found[i]) < group.first and not is_kept then
        redis.call('ZREM', pending, digits(found[i]))
        redis.call('HDEL', attempts, found[i])
        lost = lost + 1
        redis.call('HINCRBY', state, 'lost', 1)
      elseif tries >= group.most then
        condemned[#condemned + 1], condemned[#condemned + 2] = found[i], histories[i]
      elseif #chosen < most then
        chosen[#chosen + 1] = { found[i], tries, is_kept }
      end
    end
  end
  local wanted = math.min(fresh, most - #chosen)
  local items, read = { kinds = '' }, 0
  if wanted > 0 and block == tonumber(ARGV[8]) then
    items, read = read_from(start, start + wanted, block, group.epoch, tonumber(ARGV[10]))
    if is_error(items) then
      return items
    end
  end
  if wanted > 0 and read == 0 and #chosen == 0 then
    return { 2, math.floor(start / block), block, group.epoch }
  end
  -- Behind what was evicted there may be more that is due: then the caller looks again.
  if read == 0 and #chosen == 0 and #condemned == 0 and lost == 0 then
    if turn ~= '' then
      redis.call('ZREM', granted, turn)
    end
    local next_due = -1
    if group.idle then
      local first = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
      if first[1] then
        stored(pending, 'when an entry was handed out', first[2], 0, MOST_STORED)
      end
      if unbelieved then
        return unbelieved
      end
      next_due = first[2] and math.max(0, tonumber(first[2]) + group.idle - at) or -1
    end
    if ARGV[5] ~= '1' then
      leave()
      return { 1, 0, next_due }
    end
    -- However many wait, together they look about ten times a second whether somebody has died with a turn.
    local pause = math.max(1000, math.min(30000, 100 * redis.call('ZCARD', line)))
    -- A ZADD alone is refused where memory is full, but not after another write.
    local stop = whole(at + 5000 + 3 * pause)
    redis.call('ZREM', line, name)
    redis.call('ZADD', line, stop, name)
    -- Appends look only at groups that stand here: never for a shorter time than any of the line.
    redis.call('ZREMRANGEBYSCORE', waiting, '-inf', whole(at))
    redis.call('ZADD', waiting, 'GT', stop, ARGV[1])
    wake(state, line, turns, granted, at, tail, group.first, due)
    return { 1, pause, next_due }
  end
  -- An HSET alone is refused where memory is full: but who reads makes room.
  redis.call('HDEL', state, '')
  leave()
  local delivery = tonumber(redis.call('HINCRBY', state, 'delivery', #chosen + read))
  local first_delivery = delivery - read + 1
  for i = 1, #chosen do
    local offset, tries, is_kept = chosen[i][1], chosen[i][2] + 1, chosen[i][3]
    local number = delivery - read - #chosen + i
    redis.call('ZADD', pending, whole(at), digits(offset))
    redis.call('HSET', attempts, offset, whole(tries) .. ' ' .. whole(number) .. ' ' .. member)
    again[i] = { tonumber(offset), tries, number, is_kept and redis.call('HGET', revived, offset) }
  end
  local earlier = {}
  if read > 0 then
    if start > group.offset then
      redis.call('HINCRBY', state, 'lost', whole(start - group.offset))
    end
    redis.call('HSET', state, 'offset', whole(start + read))
    if group.idle then
      local offsets, times, histories = {}, {}, {}
      for i = 1, read do
        offsets[i] = whole(start + i - 1)
      end
      -- After a seek back an entry may be pending already.
      local before, is_earlier = redis.call('HMGET', attempts, unpack(offsets)), false
      for i = 1, read do
        local tries = tonumber(string.match(before[i] or '', '^%d+') or 0) + 1
        is_earlier = is_earlier or tries > 1
        earlier[i] = tries
        times[2 * i - 1], times[2 * i] = whole(at), digits(start + read - i)
        histories[2 * i - 1], histories[2 * i] = offsets[i], whole(tries) .. ' ' .. whole(first_delivery + i - 1) .. ' ' .. member
      end
      redis.call('ZADD', pending, unpack(times))
      redis.call('HSET', attempts, unpack(histories))
      if not is_earlier then
        earlier = {}
      end
    end
  end
  wake(state, line, turns, granted, at, tail, group.first, due - #chosen)
  local places = { whole(asked), whole(start), whole(read), whole(first_delivery), group.epoch }
  for i = 1, #again do
    places[i + 5] = whole(again[i][1]) .. ':' .. whole(again[i][2]) .. ':' .. whole(again[i][3])
  end
  write_receipt(receipt, table.concat(places, ' '))
  return handing_out(start, read, first_delivery, earlier, again, condemned, items)
end
