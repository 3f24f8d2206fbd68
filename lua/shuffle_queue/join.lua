-- Lets a group read a queue: registers it, and puts every stream that holds anything into its ring.
-- The script may be called again at any time, and then restores a lost ring.
-- KEYS: meta, due index, layout mark, notifications, legacy stream, ring, streams from 0 on.
-- ARGV: layout mark, queue, ttl in ms, group, the caller's number of streams.
-- Returns { 1, span }; or { 0, span }, having changed nothing, if there are more streams than KEYS.
--@include queue
local notifications, legacy, ring = KEYS[4], KEYS[5], KEYS[6]
local member = 'group:' .. ARGV[4]
local facts = redis.pcall('HMGET', meta, 'mark', 'span', 'joined', 'groups', member, 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[6])
if problem then
  return problem
end
local span = math.max(span_of(facts[2]), tonumber(ARGV[5]))
local joined_before, groups = joined_of(facts[3]), groups_of(facts[4])
if facts[5] then
  stored(meta, member, facts[5], -1, MOST_STREAMS - 1)
end
if unbelieved then
  return unbelieved
end
if span > #KEYS - 6 then
  return { 0, span }
end
local before = redis.pcall('ZCARD', ring)
if is_error(before) then
  return refusal(before, ring, 'does not hold the ring of a group')
end
local found = {}
for i = 5, #KEYS do
  if i ~= 6 then
    local length = redis.pcall('XLEN', KEYS[i])
    if is_error(length) then
      return refusal(length, KEYS[i], 'does not hold a stream of a shuffle queue')
    end
    if length > 0 then
      found[#found + 1] = i == 5 and -1 or i - 7
    end
  end
end
problem = refuse_key('XLEN', notifications, 'notifications')
if problem then
  return problem
end
local opened = redis.pcall('HSET', meta, 'mark', facts[1] or QUEUE_VERSION, 'span', span)
if is_error(opened) then
  return opened
end
if not facts[5] then
  -- A time: a queue of this name that was deleted has used no such number.
  local joined = math.max(now(), joined_before + 1)
  redis.call('HSET', meta, 'joined', whole(joined), 'groups', groups + 1, member, 1)
end
for i = 1, #found do
  redis.call('ZADD', ring, found[i], found[i])
end
redis.call('HDEL', meta, 'plan:' .. ARGV[4])
if before == 0 and #found > 0 then
  notify(notifications, found[1])
end
keep_alive(marked, alive)
return { 1, span }
