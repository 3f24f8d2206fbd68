-- Removes one consumer of a group from some streams, if it has been idle for long and owns nothing
-- there. The last call removes it from the list of consumers too, unless it owns something in any
-- stream.
-- KEYS: meta, laps, consumers, then streams. ARGV: consumer, idle ms, number of the first of the
-- streams as the list goes on, how many there are in all, and for each stream what the group is
-- called there.
-- Returns { 1 if the consumer has left the list, where to go on, or -1 if it is not idle }.
--@include upkeep
local laps, consumers = KEYS[2], KEYS[3]
local consumer, idle_ms, first, total = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local problem, exists = refuse_meta()
problem = problem
  or refuse_key('HLEN', laps, 'the laps of a reaper')
  or refuse_key('ZCARD', consumers, 'consumers')
if problem then
  return problem
end
local seen = redis.call('ZSCORE', consumers, consumer)
if not exists or not seen or tonumber(seen) > now() - idle_ms then
  return { 0, -1 }
end
-- How far other calls have come since the consumer was last seen.
local field = 'leaving:' .. consumer
local noted = redis.call('HGET', laps, field)
local next_stream, owns = 0, 0
if noted then
  local of, place, owned = string.match(noted, '^(%S+) (%d+) (%d+)$')
  -- What is no place among the streams is of no use: they are looked at once more.
  if of == seen and tonumber(place) < total then
    next_stream, owns = tonumber(place), tonumber(owned)
  end
end
if next_stream ~= first then
  return { 0, next_stream }
end
for i = 4, #KEYS do
  local group = ARGV[i + 1]
  local owned = redis.pcall('XPENDING', KEYS[i], group, '-', '+', 1, consumer)
  if not owned.err then
    if #owned > 0 then
      owns = 1
    else
      redis.call('XGROUP', 'DELCONSUMER', KEYS[i], group, consumer)
    end
  end
end
first = first + #KEYS - 3
if first < total then
  redis.pcall('HSET', laps, field, seen .. ' ' .. first .. ' ' .. owns)
  return { 0, first }
end
redis.call('HDEL', laps, field)
if owns == 1 then
  return { 0, 0 }
end
redis.call('ZREM', consumers, consumer)
return { 1, 0 }
