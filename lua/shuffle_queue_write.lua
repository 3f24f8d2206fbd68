-- Writes a message into the shortest of a tenant's streams, and tells those who sleep.
-- KEYS: meta, due index, layout mark, notifications, tracking, the streams, the rings of the groups.
-- ARGV: layout mark, queue, ttl in ms, the caller's `joined`, its number of streams, 1 to notify, how
--   many streams follow, tracking id or '', the streams' numbers, then fields and values.
-- Returns the message's id; or, if the caller does not know all groups, having changed nothing,
-- { joined, group, ... }.
--@include shuffle_queue_alive
local notifications, tracking = KEYS[4], KEYS[5]
local width = tonumber(ARGV[7])
local facts = redis.pcall('HMGET', meta, 'mark', 'span', 'joined', 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[4])
if problem then
  return problem
end
local joined = facts[3] or '0'
if joined ~= ARGV[4] then
--@include with_groups
  return with_groups({ joined })
end
local shortest, least
for i = 1, width do
  local length = redis.pcall('XLEN', KEYS[5 + i])
  if is_error(length) then
    return layout_error(KEYS[5 + i], 'does not hold a stream of a shuffle queue')
  end
  if not least or length < least then
    shortest, least = i, length
    if length == 0 then
      break
    end
  end
end
local stream = KEYS[5 + shortest]
local number = ARGV[8 + shortest]
-- A ring that holds the stream already will come to the message by itself.
-- Without any group, whoever sleeps does so since before the queue was deleted, or lost.
local absent, empty, wakes = {}, {}, #KEYS == 5 + width
for i = 6 + width, #KEYS do
  local turn = redis.pcall('ZSCORE', KEYS[i], number)
  if is_error(turn) then
    return layout_error(KEYS[i], 'does not hold the ring of a group')
  end
  if not turn then
    absent[#absent + 1] = i
    empty[i] = redis.call('ZCARD', KEYS[i]) == 0
    wakes = wakes or empty[i]
  end
end
if ARGV[8] ~= '' and is_error(redis.pcall('HEXISTS', tracking, ARGV[8])) then
  return layout_error(tracking, 'does not hold tracking ids')
end
-- A full server refuses the first write of a script or none of them.
if wakes and ARGV[6] == '1' then
  local told = notify(notifications, number)
  if is_error(told) then
    if string.find(told.err, 'WRONGTYPE', 1, true) then
      return layout_error(notifications, 'does not hold notifications')
    end
    return told
  end
end
local id = redis.pcall('XADD', stream, '*', unpack(ARGV, 9 + width))
if is_error(id) then
  return id
end
for i = 1, #absent do
  ring_in(KEYS[absent[i]], number, empty[absent[i]])
end
if not facts[1] or tonumber(facts[2]) < tonumber(ARGV[5]) then
  redis.call('HSET', meta, 'mark', QUEUE_VERSION, 'span', ARGV[5])
end
if ARGV[8] ~= '' then
  redis.call('HSET', tracking, ARGV[8], number .. ':' .. id)
end
keep_alive(marked, alive)
return number .. '-' .. id
