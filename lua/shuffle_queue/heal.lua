-- Restores, for one group and some streams, what was lost with keys beside the streams: the place in
-- the ring of a stream that has something to read, the mark of a stream with pending entries, the names
-- of consumers, and the note that entries wait to be served again.
-- KEYS: meta, ring, pending, returned, delayed, consumers, notifications, then streams. ARGV: the
-- group, 1 to change nothing, most to put right, and for each stream its number.
-- Returns { how many were restored, numbers of streams that hold anything ... }.
--@include upkeep
local ring, pending, returned, delayed = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local consumers, notifications = KEYS[6], KEYS[7]
local is_dry, limit = ARGV[2] == '1', tonumber(ARGV[3])
local OWNER = 'workstealing:returned'
local MOST_CONSUMERS = 64
local problem, mark = refuse_meta(is_dry)
problem = problem
  or refuse_key('ZCARD', ring, 'the ring of a group')
  or refuse_key('ZCARD', pending, 'the streams with pending entries')
  or refuse_key('ZCARD', returned, 'returned entries')
  or refuse_key('ZCARD', delayed, 'delayed entries')
  or refuse_key('ZCARD', consumers, 'consumers')
if problem then
  return problem
end
local result, at = { 0 }, now()
if not mark then
  return result
end
local span = span_of(redis.call('HGET', meta, 'span'))
if unbelieved then
  return unbelieved
end
-- A full server refuses the first write of a script. Then nothing is restored, but the streams that
-- can be trimmed are told.
if not is_dry and limit > 0 and is_error(redis.pcall('HSET', meta, 'mark', mark)) then
  limit = 0
end

local function found_one()
  result[1] = result[1] + 1
end

local function see_consumers(stream, name, number_of_them)
  if number_of_them == 0 or number_of_them > MOST_CONSUMERS then
    return
  end
  for _, flat in ipairs(redis.call('XINFO', 'CONSUMERS', stream, name)) do
    local consumer = {}
    for i = 1, #flat, 2 do
      consumer[flat[i]] = flat[i + 1]
    end
    local is_known = consumer.name == OWNER or redis.call('ZSCORE', consumers, consumer.name)
    if not is_known and result[1] < limit then
      if not is_dry then
        redis.call('ZADD', consumers, whole(at - consumer.idle), consumer.name)
      end
      found_one()
    end
  end
end

local waits = redis.call('ZCARD', returned) + redis.call('ZCARD', delayed) > 0
if waits and limit > 0 and redis.call('HEXISTS', meta, 'back:' .. ARGV[1]) == 0 then
  if not is_dry then
    redis.call('HSET', meta, 'back:' .. ARGV[1], 1)
    redis.call('HDEL', meta, 'plan:' .. ARGV[1])
  end
  found_one()
end
for i = 8, #KEYS do
  local number = ARGV[i - 4]
  local name = number == '-1' and KEYS[i] or ARGV[1]
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) == 'number' and redis.call('EXISTS', KEYS[i]) == 1 then
    result[#result + 1] = tonumber(number)
    if tonumber(number) >= span and result[1] < limit then
      if not is_dry then
        redis.call('HSET', meta, 'span', number + 1)
      end
      span = number + 1
      found_one()
    end
    local group = readers_of(KEYS[i])[name]
    local is_waiting
    if group then
      is_waiting = length > 0 and #redis.call('XRANGE', KEYS[i], '(' .. group['last-delivered-id'], '+', 'COUNT', 1) > 0
    else
      is_waiting = length > 0
    end
    is_waiting = is_waiting or redis.call('ZCOUNT', returned, number, number) > 0
    if is_waiting and result[1] < limit and not redis.call('ZSCORE', ring, number) then
      if not is_dry then
        if ring_in(ring, number) then
          notify(notifications, number)
        end
      end
      found_one()
    end
    local marked = redis.call('ZSCORE', pending, number)
    -- A mark of a time to come would never be due.
    local is_lost = not marked or tonumber(marked) > at
    if group and group.pending > 0 and result[1] < limit and is_lost then
      if not is_dry then
        -- No entry was delivered before it was written.
        local first = redis.call('XPENDING', KEYS[i], name, '-', '+', 1)
        redis.call('ZADD', pending, string.match(first[1][1], '^%d+'), number)
      end
      found_one()
    end
    if group then
      see_consumers(KEYS[i], name, group.consumers)
    end
  end
end
return result
