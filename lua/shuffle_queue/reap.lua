-- Takes from consumers of one group, on one stream, the entries that they have held for too long. The
-- calls go in laps over the stream's pending entries, each call some further.
-- KEYS: meta, ring, laps, pending, returned, delayed, consumers, dead, tracking, notifications,
-- deadlines, stream, then returned and delayed of every other group that reads the stream under the
-- same name.
-- ARGV: the group, number of the stream, idle ms, attempts at most, most items, most entries to
-- look at.
-- Returns { returned, set aside, cleared away, put right, stale entries seen, age of the oldest in
-- ms, whether the lap has come to its end }. This is a script because commands of stream groups
-- break no WATCH. The script's first write deletes or moves something, which a full server allows;
-- after that the server allows the script's other writes.
--@include upkeep
local ring, laps, pending, returned, delayed = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local consumers, dead, tracking, notifications = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local deadlines, stream = KEYS[11], KEYS[12]
local group, number = ARGV[1], ARGV[2]
local idle_ms, most_attempts = tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, window = tonumber(ARGV[5]), tonumber(ARGV[6])
local reader = number == '-1' and stream or group
local OWNER = 'workstealing:returned'

local problem, exists = refuse_meta()
problem = problem
  or refuse_key('ZCARD', ring, 'the ring of a group')
  or refuse_key('HLEN', laps, 'the laps of a reaper')
  or refuse_key('ZCARD', pending, 'the streams with pending entries')
  or refuse_key('ZCARD', returned, 'returned entries')
  or refuse_key('ZCARD', delayed, 'delayed entries')
  or refuse_key('ZCARD', consumers, 'consumers')
  or refuse_key('HLEN', dead, 'messages set aside')
  or refuse_key('HLEN', tracking, 'tracking ids')
  or refuse_key('ZCARD', deadlines, 'an index of deadlines')
if problem then
  return problem
end
local result = { 0, 0, 0, 0, 0, 0, 1 }
if not exists then
  return result
end

local at, lap_field = now(), 'lap:' .. number
local from, since = '-', at
local lap = redis.call('HGET', laps, lap_field)
if lap then
  -- What is no place is of no use: the lap begins again.
  local place, oldest = string.match(lap, '^(%(?%d+%-%d+) (%d+)$')
  if place and #place < 40 then
    from, since = place, math.min(at, tonumber(oldest))
  end
end

-- A read by a plan relies on the marks of its streams, so the plan goes too.
local function unmark()
  redis.call('ZREM', pending, number)
  redis.call('HDEL', meta, 'plan:' .. group)
end

local entries = redis.pcall('XPENDING', stream, reader, from, '+', window)
if entries.err and string.find(entries.err, 'Invalid stream ID', 1, true) then
  entries = redis.pcall('XPENDING', stream, reader, '-', '+', window)
end
if entries.err then
  if not string.find(entries.err, 'NOGROUP', 1, true) then
    return refusal(entries, stream, 'does not hold a stream')
  end
  unmark()
  redis.call('HDEL', laps, lap_field)
  return result
end

local function is_listed(member)
  -- With another score than its stream's number it would never be found.
  if tonumber(redis.call('ZSCORE', returned, member) or nil) == tonumber(number) or redis.call('ZSCORE', delayed, member) then
    return true
  end
  for i = 13, #KEYS do
    if redis.call('ZSCORE', KEYS[i], member) then
      return true
    end
  end
  return false
end

-- Without JUSTID it would count as a delivery.
local is_told = false
local function put_back(id)
  redis.call('XCLAIM', stream, reader, OWNER, 0, id, 'JUSTID')
  is_told = give_back(ring, returned, delayed, group, number, id) or is_told
end

local handled, place, owners, has_room = 0, nil, {}, true
for _, entry in ipairs(entries) do
  local id, owner, idle, count = entry[1], entry[2], entry[3], entry[4]
  local is_stale = owner ~= OWNER and idle >= idle_ms
  if is_stale then
    result[5] = result[5] + 1
    result[6] = math.max(result[6], idle)
  end
  if owner ~= OWNER then
    -- A consumer that no list names could never be removed.
    if has_room and not owners[owner] then
      owners[owner] = true
      has_room = type(redis.pcall('ZADD', consumers, 'NX', whole(at - idle), owner)) ~= 'table'
    end
    if not is_stale then
      since = math.min(since, at - idle)
    end
  end
  if handled >= limit then
    place = place or id
  elseif owner == OWNER or is_stale then
    local fields = fields_of(stream, id)
    if not fields then
      redis.call('XACK', stream, reader, id)
      redis.call('ZREM', returned, number .. ':' .. id)
      redis.call('ZREM', delayed, number .. ':' .. id)
      handled, result[3] = handled + 1, result[3] + 1
    elseif count >= most_attempts then
      bury(dead, returned, delayed, tracking, deadlines, stream, reader, number, id, count, at - idle, at, fields)
      handled, result[2] = handled + 1, result[2] + 1
    elseif is_stale then
      put_back(id)
      handled, result[1] = handled + 1, result[1] + 1
    elseif not is_listed(number .. ':' .. id) then
      put_back(id)
      handled, result[4] = handled + 1, result[4] + 1
    end
  end
end
if is_told then
  notify(notifications, number)
end
if not place and #entries == window then
  place = '(' .. entries[window][1]
end
if place then
  -- If a full server refuses this, the lap begins again.
  redis.pcall('HSET', laps, lap_field, place .. ' ' .. whole(since))
  result[7] = 0
else
  redis.call('HDEL', laps, lap_field)
  if #redis.call('XPENDING', stream, reader, '-', '+', 1) == 0 then
    unmark()
  else
    redis.pcall('ZADD', pending, 'XX', whole(since), number)
  end
end
return result
