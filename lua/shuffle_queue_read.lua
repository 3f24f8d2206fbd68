-- Serves what a group is to work on next: one message of the stream whose turn it is, and so on.
-- KEYS: meta, notifications, legacy stream, ring, state, pending, returned, delayed, tracking, streams.
-- ARGV: group, consumer, how many messages, how many heads of the ring to tell, the number of a stream
--   that goes first or '', 1 if the ring is likely to be no longer than those heads, the numbers of the
--   streams in KEYS.
-- Returns { kind, server's time in ms, heads of the ring next, ... }: kind 0: messages follow, each as
-- { stream number, entry id, deliveries, fields and values }; 1: there is nothing: last id of the
-- notifications, last id of the legacy stream, ms until a delayed message returns or -1; 2: the first
-- head is missing in KEYS, here is the span; 3: what was found was overdue or gone, look again; 4: the group
-- is not registered.
--@include now
local facts = redis.pcall('HMGET', KEYS[1], 'mark', 'group:' .. ARGV[1], 'back:' .. ARGV[1], 'span')
local taken
-- The usual call, whose stream is the expected one, without the functions of the other cases.
if facts[1] == '1' and facts[2] and not facts[3] and ARGV[3] == '1' and ARGV[5] == '' and ARGV[7] then
  local heads
  local is_alone = ARGV[6] == '1'
  if is_alone then
    heads = redis.pcall('ZRANGE', KEYS[4], 0, 1)
    is_alone = heads[1] == ARGV[7] and #heads == 1 and redis.call('EXISTS', KEYS[3]) == 0
  else
    heads = redis.pcall('ZRANGEBYSCORE', KEYS[4], '(' .. facts[2], '+inf', 'LIMIT', 0, ARGV[4] + 1)
  end
  if is_alone or heads[1] == ARGV[7] and #heads > tonumber(ARGV[4]) then
    taken = redis.pcall('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', 1, 'STREAMS', KEYS[10], '>')
    -- fakeredis gives one stream's reply without the list around it.
    local entry = taken and (type(taken[1]) == 'table' and taken[1][2] or taken[2])
    entry = entry and entry[1]
    if not entry then
      taken = nil
    elseif entry[2][#entry[2] - 1] == 'ws:tenant' then
      -- Of the queue's own fields it has this one alone: it has no deadline.
      local at, top = now(), 1
      local delay = at - string.match(entry[1], '^%d+')
      while top < delay do
        top = top * 2
      end
      redis.call('ZADD', KEYS[6], 'NX', string.format('%.0f', at), ARGV[7])
      redis.call('HINCRBY', KEYS[5], 'delay:' .. top, 1)
      if not is_alone then
        table.remove(heads, 1)
      end
      if facts[2] ~= ARGV[7] then
        redis.call('HSET', KEYS[1], 'group:' .. ARGV[1], ARGV[7])
      end
      return { 0, at, heads, { ARGV[7], entry[1], 1, entry[2] } }
    end
  end
end
--@include shuffle_queue
local notifications, legacy, ring, state = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, returned, delayed, tracking = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local group, consumer, most, window = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
-- Bounds what one call passes over.
local LOOKS = 64
local problem = refuse(facts)
if problem then
  return problem
end
local at = now()
if not facts[2] then
  return { 4, at, {} }
end
-- The stream that was served last: its turn has gone, those after it come next.
local last = tonumber(facts[2])
local heads, is_whole
local places = { ['-1'] = 3 }
for i = 10, #KEYS do
  places[ARGV[i - 3]] = i
end
local back = facts[3]
local served, looks, broken, is_legacy_empty = {}, 0, nil, false

-- Forgets that anything of this group returns, once nothing does.
local function settle_back()
  if redis.call('ZCARD', returned) == 0 and redis.call('ZCARD', delayed) == 0 then
    redis.call('HDEL', meta, 'back:' .. group)
    back = false
  end
end

local function last_id(stream)
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
  return last[1] and last[1][1] or '0-0'
end

-- Counts a message and puts it into the reply.
local function serve(number, id, deliveries, fields)
  redis.call('ZADD', pending, 'NX', whole(at), number)
  if deliveries == 1 then
    local delay, top = at - string.match(id, '^%d+'), 1
    while top < delay do
      top = top * 2
    end
    redis.call('HINCRBY', state, 'delay:' .. whole(top), 1)
  else
    redis.call('HINCRBY', state, 'redelivered', 1)
  end
  served[#served + 1] = { number, id, deliveries, fields }
end

-- Says whether a message is not for this group, or past its deadline; then it is deleted, for every group.
local function drop_overdue(stream, reader, number, id, fields)
  local deadline, tracked
  -- The queue's own fields are the last ones.
  for i = #fields - 1, math.max(1, #fields - 7), -2 do
    if fields[i] == 'ws:group' and fields[i + 1] ~= group then
      -- It was revived for another group, after this one had done its work.
      redis.call('XACK', stream, reader, id)
      return true
    elseif fields[i] == 'ws:deadline' then
      -- Others may have written anything; a NaN would be past.
      deadline = tonumber(string.match(fields[i + 1], '^%d+$'))
    elseif fields[i] == 'ws:tracking' then
      tracked = fields[i + 1]
    end
  end
  if not deadline or deadline > at then
    return false
  end
  redis.call('XACK', stream, reader, id)
  redis.call('XDEL', stream, id)
  if tracked and redis.call('HGET', tracking, tracked) == number .. ':' .. id then
    redis.call('HDEL', tracking, tracked)
  end
  redis.call('HINCRBY', state, 'overdue', 1)
  return true
end

-- Serves the first returned entry of a stream that is still there. Returns whether there was one.
local function serve_returned(stream, reader, number)
  while looks < LOOKS do
    local member = redis.call('ZRANGEBYSCORE', returned, number, number, 'LIMIT', 0, 1)[1]
    if not member then
      return false
    end
    local id = string.match(member, ':(.*)$')
    local claimed = redis.pcall('XCLAIM', stream, reader, consumer, 0, id)
    redis.call('ZREM', returned, member)
    local entry = not is_error(claimed) and claimed[1]
    local found = entry and redis.call('XPENDING', stream, reader, id, id, 1)[1]
    settle_back()
    if not found then
      -- It was cancelled. An old server leaves a deleted entry pending.
      redis.pcall('XACK', stream, reader, id)
    elseif not drop_overdue(stream, reader, number, id, entry[2]) then
      serve(number, id, found[4], entry[2])
      return true
    end
    looks = looks + 1
    if not back then
      return false
    end
  end
  return false
end

-- Serves the next message of a stream. Returns whether there was one. Where a server is full, what
-- was read could not be counted if that were the first write: XREADGROUP is never refused.
local function serve_from(stream, number)
  local reader = number == '-1' and legacy or group
  if back and serve_returned(stream, reader, number) then
    return true
  end
  while looks < LOOKS do
    local reply = taken or redis.pcall('XREADGROUP', 'GROUP', reader, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
    taken = nil
    if is_error(reply) then
      if redis.call('EXISTS', stream) == 0 then
        return false
      end
      local made = redis.pcall('XGROUP', 'CREATE', stream, reader, '0')
      if is_error(made) then
        broken = string.find(reply.err, 'WRONGTYPE', 1, true)
          and layout_error(stream, 'does not hold a stream of a shuffle queue') or made
        return false
      end
    elseif not reply or not reply[1] then
      return false
    else
      -- fakeredis gives one stream's reply without the list around it.
      local entry = (type(reply[1]) == 'table' and reply[1][2] or reply[2])[1]
      if not drop_overdue(stream, reader, number, entry[1], entry[2]) then
        serve(number, entry[1], 1, entry[2])
        return true
      end
    end
    looks = looks + 1
  end
  return false
end

-- Sets the next heads of the ring, in the order of their turns. Returns an error reply or nil.
local function look(is_short)
  local from_start
  if not is_short then
    heads, is_whole = redis.pcall('ZRANGEBYSCORE', ring, '(' .. last, '+inf', 'LIMIT', 0, window + 1), false
    if heads.err then
      return layout_error(ring, 'does not hold the ring of a group')
    end
    if #heads > window then
      return
    end
  end
  from_start = redis.pcall('ZRANGE', ring, 0, window)
  if from_start.err then
    return layout_error(ring, 'does not hold the ring of a group')
  end
  if is_short then
    if #from_start > window then
      return look(false)
    end
    heads = {}
    for i = 1, #from_start do
      if tonumber(from_start[i]) > last then
        heads[#heads + 1] = from_start[i]
      end
    end
  end
  is_whole = #from_start <= window
  -- The legacy stream's writers put it into no ring: it has a turn each time round.
  if not is_legacy_empty and from_start[1] ~= '-1' and redis.call('EXISTS', legacy) == 1 then
    heads[#heads + 1] = '-1'
  end
  for i = 1, #from_start do
    if tonumber(from_start[i]) > last or #heads > window then
      break
    end
    heads[#heads + 1] = from_start[i]
  end
end

if back then
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', whole(at), 'LIMIT', 0, 16)
  for i = 1, #due do
    local number = string.match(due[i], '^-?%d+')
    redis.call('ZREM', delayed, due[i])
    redis.call('ZADD', returned, number, due[i])
    ring_in(ring, number)
  end
end
local problem = look(ARGV[6] == '1')
if problem then
  return problem
end
if ARGV[5] ~= '' and redis.call('ZSCORE', ring, ARGV[5]) then
  local others = { ARGV[5] }
  for i = 1, #heads do
    if heads[i] ~= ARGV[5] then
      others[#others + 1] = heads[i]
    end
  end
  heads = others
end
local next, nothing, need = 1, false, false
while #served < most and looks < LOOKS and not broken do
  local number = heads[next]
  if number then
    local place = places[number]
    if not place then
      need = true
      break
    end
    local stream = KEYS[place]
    if serve_from(stream, number) then
      if number ~= ARGV[5] then
        last = tonumber(number)
      end
      next = next + 1
    elseif looks < LOOKS and not broken then
      redis.call('ZREM', ring, number)
      is_legacy_empty = is_legacy_empty or number == '-1'
      looks = looks + 1
      next = next + 1
    end
  else
    look(false)
    next = 1
    if not heads[1] then
      nothing = true
      break
    end
  end
end
local following = {}
for i = next, #heads do
  following[#following + 1] = heads[i]
end
if #served > 0 then
  -- The group's field says at once that the group is registered, and who was served last.
  redis.call('HSET', meta, 'group:' .. group, last)
  -- A ring that is seen as a whole goes round: who was served comes again behind the others.
  if is_whole then
    for i = 1, math.min(next - 1, #heads) do
      following[#following + 1] = heads[i]
    end
  end
  return { 0, at, following, unpack(served) }
end
if broken then
  return broken
end
if need then
  return { 2, at, following, tonumber(facts[4]) }
end
if not nothing then
  return { 3, at, following }
end
local wait = -1
if back then
  settle_back()
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  if first[2] then
    wait = math.max(0, tonumber(first[2]) - at)
  end
end
return { 1, at, following, last_id(notifications), last_id(legacy), wait }
