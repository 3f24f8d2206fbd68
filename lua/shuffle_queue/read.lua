-- Serves the next messages of a group, one of each stream in turn, and plans the streams that
-- shuffle_queue/next serves after them.
-- KEYS: meta, notifications, legacy stream, ring, state, pending, returned, delayed, tracking,
-- deadlines, the read's receipt, streams.
-- ARGV: group, consumer, how many messages, how many heads of the ring to tell, the number of a
-- stream that goes first or '', 1 if the ring is likely to be no longer than those heads, pickup
-- delays in ms that the caller has seen since, each with how many, what was read of the first
-- stream in KEYS and not served or '', the read's number, the numbers of the streams in KEYS.
-- Returns { kind, server's time in ms, heads of the ring next, ... }: kind 0: the plan's name and
-- streams, instead of the heads, or '', and messages follow, each as { stream number, entry id,
-- deliveries, fields and values }; 1: there is nothing: last id of the notifications, last id of
-- the legacy stream, ms until a delayed message returns or -1; 2: the first head is missing in
-- KEYS, here is the span; 3: what was found was overdue or gone, or it was granted to this read
-- before and is no longer the caller's: look again, as a new read; 4: the group is not registered.
-- The caller's delays are counted by 0 and 1 alone. A read that was granted messages before is
-- answered by these, without any heads.
--@include queue
--@include message
--@include receipt
local notifications, legacy, ring, state = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, returned, delayed, tracking, deadlines = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local receipt = KEYS[11]
local group, consumer, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local facts = redis.pcall('HMGET', meta, 'mark', 'group:' .. group, 'back:' .. group, 'span', 'plan:' .. group)
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
-- How many streams are planned: many, if a plan of few has lasted. The name of a plan tells whether it
-- goes round for as long as the ring stays as it is. Such a plan is not made again, unless there is a
-- legacy stream now.
local PLAN, is_round = 9, false
if facts[5] then
  is_round = string.sub(facts[5], -1) == 'r' and redis.call('EXISTS', legacy) == 0
  PLAN = is_round and 2 or 65
end
local window = math.max(PLAN, ARGV[4])
-- The stream that was served last. Those after it come next.
local last = stored(meta, 'group:' .. group, facts[2], -1, MOST_STREAMS - 1)
local before, span = last, span_of(facts[4])
if unbelieved then
  return unbelieved
end
local heads, is_whole, gone
local places = { ['-1'] = 3 }
for i = 12, #KEYS do
  places[ARGV[i - 2]] = i
end
local back, delays = facts[3], ARGV[7]
local served, looks, broken, is_legacy_empty, is_new = {}, 0, nil, false, false

-- Forgets that anything of this group returns, once nothing does.
local function settle_back()
  if redis.call('ZCARD', returned) == 0 and redis.call('ZCARD', delayed) == 0 then
    redis.call('HDEL', meta, 'back:' .. group)
    back = false
  end
end

local function last_id(stream)
  local last = redis.pcall('XREVRANGE', stream, '+', '-', 'COUNT', 1)
  if is_error(last) then
    unbelieved = unbelieved or refusal(last, stream, 'does not hold a stream of a shuffle queue')
    return ''
  end
  return last[1] and last[1][1] or '0-0'
end

-- Marks the message's stream as one with pending entries, and puts the message into the reply.
local function serve(number, id, deliveries, fields)
  redis.call('ZADD', pending, 'NX', whole(at), number)
  if deliveries == 1 then
    delays = delays .. ' ' .. whole(math.max(0, at - string.match(id, '^%d+'))) .. ':1'
  else
    -- A counter that is none stops no delivery: stats() refuses it.
    redis.pcall('HINCRBY', state, 'redelivered', 1)
  end
  served[#served + 1] = { number, id, deliveries, fields }
end

-- Says whether a message is to be passed over: it is not for this group; or its deadline has passed, and
-- then it is deleted for every group.
local function drop_overdue(stream, reader, number, id, fields)
  local only, deadline, tracked = own_of(fields)
  if only and only ~= group then
    -- It was revived for another group, after this one had done its work.
    redis.call('XACK', stream, reader, id)
    return true
  end
  if not deadline or deadline > at then
    return false
  end
  redis.call('XACK', stream, reader, id)
  redis.call('XDEL', stream, id)
  if tracked and redis.call('HGET', tracking, tracked) == number .. ':' .. id then
    redis.call('HDEL', tracking, tracked)
  end
  redis.call('ZREM', deadlines, deadline_member(number, id, tracked))
  redis.pcall('HINCRBY', state, 'overdue', 1)
  return true
end

-- Serves the first returned entry of a stream that is still there. Returns whether there was one.
local function serve_returned(stream, reader, number)
  while looks < LOOKS do
    local member = redis.call('ZRANGEBYSCORE', returned, number, number, 'LIMIT', 0, 1)[1]
    if not member then
      return false
    end
    local _, id = place_of(returned, member)
    if not id then
      broken = unbelieved
      return false
    end
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

-- Serves the next message of a stream. Returns whether there was one. XREADGROUP is the first write,
-- because a full server allows it, and then it allows the counts behind it.
local function serve_from(stream, number)
  local reader = number == '-1' and legacy or group
  if back and serve_returned(stream, reader, number) then
    return true
  end
  while looks < LOOKS do
    local reply = redis.pcall('XREADGROUP', 'GROUP', reader, consumer, 'COUNT', 1, 'STREAMS', stream, '>')
    if is_error(reply) then
      if redis.call('EXISTS', stream) == 0 then
        return false
      end
      if not string.find(tostring(reply.err), 'NOGROUP', 1, true) then
        broken = refusal(reply, stream, 'does not hold a stream of a shuffle queue')
        return false
      end
      local made = redis.pcall('XGROUP', 'CREATE', stream, reader, '0')
      is_new = true
      if is_error(made) then
        broken = made
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

-- Returns those members of a ring that are numbers of streams.
local function believed(members)
  local found = {}
  for i = 1, #members do
    if is_integer(members[i]) and number_of(ring, members[i]) == tonumber(members[i]) then
      found[#found + 1] = members[i]
    else
      number_of(ring, members[i])
    end
  end
  return found
end

-- Sets the next heads of the ring, in the order of their turns. Returns an error reply or nil.
local function look(is_short)
  local from_start
  if not is_short then
    heads, is_whole = redis.pcall('ZRANGEBYSCORE', ring, '(' .. last, '+inf', 'LIMIT', 0, window + 1), false
    if heads.err then
      return refusal(heads, ring, 'does not hold the ring of a group')
    end
    heads = believed(heads)
    if #heads > window then
      return
    end
  end
  from_start = redis.pcall('ZRANGE', ring, 0, window)
  if from_start.err then
    return refusal(from_start, ring, 'does not hold the ring of a group')
  end
  from_start = believed(from_start)
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

-- Writes down the streams that are served next, as far as that is certain while the ring stays as it
-- is. All of them are marked as pending now, because a mark must not come after a delivery.
local function plan(following)
  local stands = is_round and not gone and redis.call('HGET', meta, 'turns:' .. group)
  -- Of what is no plan of that name a new one is made.
  local length = facts[5] and #facts[5] + 1
  local is_plan = stands and string.sub(stands, 1, length) == facts[5] .. ' '
    and not string.find(stands, '[^%d -]', length) and not string.find(stands, '%d%d%d%d%d', length)
    and string.find(stands, '^%-?%d+ %d+', length + 1)
  if is_plan then
    redis.call('HSET', meta, 'group:' .. group, last)
    return stands
  end
  local named = {}
  for i = 1, PLAN do
    local number = following[i]
    if not number or number == '-1' then
      break
    end
    named[i] = number
  end
  -- If the ring is seen as a whole, the first stream comes after the last one. Otherwise the plan does
  -- not serve its last stream, which only says where the next plan begins.
  local goes_round = is_whole and #named > 0 and #named == #following
  local turns = goes_round and #named or #named - 1
  -- If this group has not read one stream before, it has not read the next one either.
  if back or is_new or turns < 1 then
    redis.call('HDEL', meta, 'plan:' .. group)
    redis.call('HSET', meta, 'group:' .. group, last)
    return ''
  end
  -- If as many are marked as there are streams, all are, and the most expensive part is left out.
  if redis.call('ZCARD', pending) ~= span or redis.call('ZSCORE', pending, '-1') then
    local marks, moment = {}, whole(at)
    for i = 1, turns do
      marks[#marks + 1], marks[#marks + 2] = moment, named[i]
    end
    redis.call('ZADD', pending, 'NX', unpack(marks))
  end
  if goes_round then
    named[#named + 1] = named[1]
  end
  -- No two plans have one name: a reader with an older one is told so.
  local clock = redis.call('TIME')
  local name = clock[1] .. '.' .. clock[2] .. (goes_round and 'r' or '')
  local text = name .. ' ' .. whole(last) .. ' ' .. table.concat(named, ' ')
  -- The group's field says at once that the group is registered, and who was served last.
  redis.call('HSET', meta, 'group:' .. group, last, 'plan:' .. group, name, 'turns:' .. group, text)
  return text
end

if ARGV[8] ~= '' then
  local stream = KEYS[12]
  local left = redis.call('XRANGE', stream, ARGV[8], ARGV[8])[1]
  if left then
    drop_overdue(stream, group, ARGV[10], left[1], left[2])
  end
end
local sent, noted = receipt_of(redis.pcall('GET', receipt))
if sent and sent >= tonumber(ARGV[9]) then
  -- One with a lower number is from long ago, and gets nothing.
  local granted = sent == tonumber(ARGV[9]) and granted_by(noted) or {}
  local again, wanted = {}, {}
  for i, place in ipairs(granted) do
    local number, id, deliveries = place[1], place[2], tonumber(place[3])
    local stream, reader = KEYS[places[number]], number == '-1' and KEYS[3] or group
    wanted[i] = number
    if stream and is_held(stream, reader, id, consumer, deliveries) then
      -- Its lease begins again, because somebody hears of it only now.
      redis.call('XCLAIM', stream, reader, consumer, 0, id, 'JUSTID')
      local entry = redis.call('XRANGE', stream, id, id)[1]
      again[#again + 1] = entry and { number, id, deliveries, entry[2] }
    end
  end
  for _, number in ipairs(wanted) do
    if not places[number] then
      return { 2, at, wanted, span }
    end
  end
  if again[1] then
    return { 0, at, {}, '', unpack(again) }
  end
  return { 3, at, {} }
end
if back then
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', whole(at), 'LIMIT', 0, 16)
  for i = 1, #due do
    place_of(delayed, due[i])
  end
  if unbelieved then
    return unbelieved
  end
  for i = 1, #due do
    local number = string.match(due[i], '^-?%d+')
    redis.call('ZREM', delayed, due[i])
    redis.call('ZADD', returned, number, due[i])
    ring_in(ring, number)
  end
end
local problem = look(ARGV[6] == '1' and not is_round) or unbelieved
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
      gone = gone or {}
      gone[number] = true
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
  count_delays(state, delays)
  local granted = { ARGV[9] }
  for i = 1, #served do
    granted[i + 1] = served[i][1] .. ':' .. served[i][2] .. ':' .. whole(served[i][3])
  end
  write_receipt(receipt, table.concat(granted, ' '))
  -- A ring that is seen as a whole goes round: the streams just served come again behind the others.
  if is_whole then
    for i = 1, math.min(next - 1, #heads) do
      if not (gone and gone[heads[i]]) then
        following[#following + 1] = heads[i]
      end
    end
  end
  local planned = ''
  if ARGV[5] == '' then
    planned = plan(following)
    following = planned == '' and following or {}
  elseif gone or last ~= before then
    redis.call('HDEL', meta, 'plan:' .. group)
    redis.call('HSET', meta, 'group:' .. group, last)
  end
  return { 0, at, following, planned, unpack(served) }
end
if gone then
  redis.call('HDEL', meta, 'plan:' .. group)
end
if broken or unbelieved then
  return broken or unbelieved
end
if need then
  return { 2, at, following, span }
end
if not nothing then
  return { 3, at, following }
end
local wait = -1
if back then
  settle_back()
  local first = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
  if first[2] then
    wait = math.max(0, stored(delayed, 'the time of a message', first[2], 0, MOST_STORED) - at)
    if unbelieved then
      return unbelieved
    end
  end
end
local told, seen = last_id(notifications), last_id(legacy)
if unbelieved then
  return unbelieved
end
count_delays(state, delays)
return { 1, at, following, told, seen, wait }
