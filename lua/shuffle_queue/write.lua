-- Writes messages, each into the shortest of its account's streams, and wakes sleeping readers.
-- KEYS: meta, due index, layout mark, notifications, tracking, deadlines, the streams, the rings of
-- the groups.
-- ARGV: layout mark, queue, ttl in ms, `joined` as the caller knows it, the queue's number of
-- streams, 1 to notify, how many streams follow in KEYS, then for each message: tracking id or '',
-- deadline in ms or '', the places of its streams among these, how many fields and values follow, and
-- these.
-- Returns { 1, the messages' ids }; or, if the caller does not know all groups, having changed
-- nothing, { 0, joined, group, ... }.
--@include queue
local due, notifications, tracking = KEYS[2], KEYS[4], KEYS[5]
local facts = redis.pcall('HMGET', meta, 'mark', 'span', 'joined', 'namespace')
local marked = redis.pcall('GET', KEYS[3])
local alive = redis.pcall('ZSCORE', due, ARGV[2])
is_named = facts[4]
if
  facts[1] ~= QUEUE_VERSION
  or facts[2] ~= ARGV[5]
  or facts[3] ~= ARGV[4]
  or marked ~= ARGV[1]
  or type(alive) == 'table'
  or is_elsewhere(is_named, due)
  or not string.find(facts[2] or '0', '^%d%d?%d?%d?$')
then
  -- Functions needed only here are not made for each message.
  --@include queue
  local problem = refuse_queue(facts, is_named)
  if problem then
    return problem
  end
  span_of(facts[2])
  joined_of(facts[3])
  if facts[1] then
    span_of(facts[2])
  end
  if unbelieved then
    return unbelieved
  end
  local joined = facts[3] or '0'
  if joined ~= ARGV[4] then
    return with_groups({ 0, joined })
  end
end
local rings = 7 + ARGV[7]
-- For each message where it begins in ARGV, its stream's place in KEYS, and its stream's number. The
-- messages are looked at in turn: each makes its stream longer for the next.
local begins, chosen, numbers, lengths = {}, {}, {}, {}
local any_tracked, any_deadline
local at = 8
while at <= #ARGV do
  local shortest, least
  for place in string.gmatch(ARGV[at + 2], '%d+') do
    local i = 6 + place
    local length = lengths[i] or redis.pcall('XLEN', KEYS[i])
    if type(length) == 'table' then
      --@include layout
      return refusal(length, KEYS[i], 'does not hold a stream of a shuffle queue')
    end
    lengths[i] = length
    if not least or length < least then
      shortest, least = i, length
      if length == 0 then
        break
      end
    end
  end
  lengths[shortest] = least + 1
  local n = #begins + 1
  -- Its key is `...s3` where that of the facts is `...meta`.
  begins[n], chosen[n], numbers[n] = at, shortest, string.sub(KEYS[shortest], #meta - 2)
  any_tracked = any_tracked or ARGV[at] ~= '' and ARGV[at]
  any_deadline = any_deadline or ARGV[at + 1] ~= ''
  at = at + 4 + ARGV[at + 3]
end
-- A ring that holds the stream already will come to the message by itself.
-- Without any group, a reader can only sleep since before the queue was deleted or lost.
local absent, wakes = {}, not KEYS[rings]
for i = rings, #KEYS do
  local size = redis.pcall('ZCARD', KEYS[i])
  if type(size) == 'table' then
    --@include layout
    return refusal(size, KEYS[i], 'does not hold the ring of a group')
  end
  local is_empty, seen = size == 0, {}
  wakes = wakes or is_empty
  for n = 1, #numbers do
    local number = numbers[n]
    if not seen[number] then
      seen[number] = true
      if is_empty or not redis.call('ZSCORE', KEYS[i], number) then
        absent[#absent + 1] = { i, number, is_empty }
      end
    end
  end
end
local about = any_tracked and redis.pcall('HEXISTS', tracking, any_tracked)
if type(about) == 'table' then
  --@include layout
  return refusal(about, tracking, 'does not hold tracking ids')
end
about = any_deadline and redis.pcall('ZCARD', KEYS[6])
if type(about) == 'table' then
  --@include layout
  return refusal(about, KEYS[6], 'does not hold an index of deadlines')
end
-- A full server refuses the first write of a script or none of them.
if wakes and ARGV[6] == '1' then
  local told = notify(notifications, numbers[1])
  if type(told) == 'table' and told.err then
    --@include layout
    return refusal(told, notifications, 'does not hold notifications')
  end
end
local ids, written = {}, { 1 }
for n = 1, #begins do
  local first = begins[n] + 4
  local id = redis.pcall('XADD', KEYS[chosen[n]], '*', unpack(ARGV, first, first + ARGV[first - 1] - 1))
  if type(id) == 'table' then
    -- A stream whose ids are used up, for instance. All of the messages are written, or none.
    for before = 1, n - 1 do
      redis.call('XDEL', KEYS[chosen[before]], ids[before])
    end
    return id
  end
  ids[n], written[n + 1] = id, numbers[n] .. '-' .. id
end
if absent[1] then
  --@include queue
  for i = 1, #absent do
    local ring, number, is_empty = KEYS[absent[i][1]], absent[i][2], absent[i][3]
    ring_in(ring, number, is_empty)
  end
end
if not facts[1] or tonumber(facts[2] or 0) < tonumber(ARGV[5]) then
  redis.call('HSET', meta, 'mark', facts[1] or QUEUE_VERSION, 'span', ARGV[5])
end
if any_tracked then
  for n = 1, #begins do
    if ARGV[begins[n]] ~= '' then
      redis.call('HSET', tracking, ARGV[begins[n]], numbers[n] .. ':' .. ids[n])
    end
  end
end
if any_deadline then
  --@include message
  for n = 1, #begins do
    local tracked, ends = ARGV[begins[n]], ARGV[begins[n] + 1]
    if ends ~= '' then
      redis.call('ZADD', KEYS[6], ends, deadline_member(numbers[n], ids[n], tracked))
    end
  end
end
-- The first entry of a millisecond is named by the clock; one of a stream whose clock was ahead is
-- not.
local moment = string.match(ids[1], '^(%d+)-0$')
keep_alive(marked, alive, 0, moment and moment + CLOCK_SHIFT_MS)
return written
