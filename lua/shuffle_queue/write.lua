-- Writes a message into the shortest of an account's streams, and wakes sleeping readers.
-- KEYS: meta, due index, layout mark, notifications, tracking, deadlines, the streams, the rings of
-- the groups.
-- ARGV: layout mark, queue, ttl in ms, `joined` as the caller knows it, the tenant's number of
-- streams, 1 to notify, how many streams follow in KEYS, tracking id or '', deadline in ms or '',
-- then fields and values.
-- Returns the message's id; or, if the caller does not know all groups, having changed nothing,
-- { joined, group, ... }.
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
    return with_groups({ joined })
  end
end
local rings = 7 + ARGV[7]
local shortest, least
for i = 7, rings - 1 do
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) == 'table' then
    return refusal(length, KEYS[i], 'does not hold a stream of a shuffle queue')
  end
  if not least or length < least then
    shortest, least = i, length
    if length == 0 then
      break
    end
  end
end
local stream = KEYS[shortest]
-- Its key is `...s3` where that of the facts is `...meta`.
local number = string.sub(stream, #meta - 2)
-- A ring that holds the stream already will come to the message by itself.
-- Without any group, a reader can only sleep since before the queue was deleted or lost.
local absent, empty, wakes = {}, {}, not KEYS[rings]
for i = rings, #KEYS do
  local size = redis.pcall('ZCARD', KEYS[i])
  if type(size) == 'table' then
    return refusal(size, KEYS[i], 'does not hold the ring of a group')
  end
  local is_empty = size == 0
  if is_empty or not redis.call('ZSCORE', KEYS[i], number) then
    absent[#absent + 1] = i
    empty[i] = is_empty
    wakes = wakes or is_empty
  end
end
local about = ARGV[8] ~= '' and redis.pcall('HEXISTS', tracking, ARGV[8])
if type(about) == 'table' then
  return refusal(about, tracking, 'does not hold tracking ids')
end
about = ARGV[9] ~= '' and redis.pcall('ZCARD', KEYS[6])
if type(about) == 'table' then
  return refusal(about, KEYS[6], 'does not hold an index of deadlines')
end
-- A full server refuses the first write of a script or none of them.
if wakes and ARGV[6] == '1' then
  local told = notify(notifications, number)
  if type(told) == 'table' and told.err then
    return refusal(told, notifications, 'does not hold notifications')
  end
end
local id = redis.pcall('XADD', stream, '*', unpack(ARGV, 10))
if type(id) == 'table' then
  return id
end
for i = 1, #absent do
  ring_in(KEYS[absent[i]], number, empty[absent[i]])
end
if not facts[1] or tonumber(facts[2] or 0) < tonumber(ARGV[5]) then
  redis.call('HSET', meta, 'mark', facts[1] or QUEUE_VERSION, 'span', ARGV[5])
end
if ARGV[8] ~= '' then
  redis.call('HSET', tracking, ARGV[8], number .. ':' .. id)
end
if ARGV[9] ~= '' then
  --@include message
  redis.call('ZADD', KEYS[6], ARGV[9], deadline_member(number, id, ARGV[8]))
end
-- The first entry of a millisecond is named by the clock; one of a stream whose clock was ahead is
-- not.
local moment = string.match(id, '^(%d+)-0$')
keep_alive(marked, alive, 0, moment and moment + CLOCK_SHIFT_MS)
return number .. '-' .. id
