-- Forgets the ids of producers of a log that have been known for long enough, or all of them.
--   KEYS[1] meta
--   KEYS[2] producers
--   KEYS[3..] ids of each of some producers
--   ARGV[1] `all` whatever their age, `due`, or `look` to change nothing
-- Returns { producers some of whose ids were forgotten (would be), for how many ms the oldest has been due, how many producers are due
-- now }.
--@include clock
--@include log
--@include ids
local meta, producers = KEYS[1], KEYS[2]
local facts = redis.pcall('HMGET', meta, 'mark', 'next')
local problem = refuse(meta, facts, ARGV[1] == 'look') or refuse_key('ZCARD', producers, 'the producers of a log')
local tail, at, found = nil, now(), {}
if problem then
  return problem
end
tail = end_of(meta, facts[2], facts[1])
local window = window_of(meta, 0)
for i = 3, #KEYS do
  local name = producer_of(meta, KEYS[i])
  found[i] = { name = name }
  if ARGV[1] ~= 'all' then
    problem, found[i] = look_at_producer(KEYS[i], producers, name, tail, at)
  end
  if problem then
    return problem
  end
end
if unbelieved then
  return unbelieved
end
local done, oldest_ms, room = 0, 0, MOST_FORGOTTEN
for i = 3, #KEYS do
  local each = found[i]
  if ARGV[1] == 'all' then
    redis.call('UNLINK', KEYS[i])
    done = done + redis.call('ZREM', producers, each.name)
  elseif is_past(each) and room > 0 then
    done, oldest_ms = done + 1, math.max(oldest_ms, at - each.due)
    if ARGV[1] == 'due' then
      room = room - forget_ids(KEYS[i], producers, each, window, room)
      if redis.call('ZCARD', KEYS[i]) <= 1 then
        redis.call('UNLINK', KEYS[i])
        redis.call('ZREM', producers, each.name)
      end
    end
  end
end
if ARGV[1] == 'due' then
  -- Times of a clock that has been set back since: they would never end.
  local far = redis.call('ZRANGEBYSCORE', producers, '(' .. whole(at + window), '+inf', 'LIMIT', 0, 100)
  for i = 1, #far do
    redis.call('ZREM', producers, far[i])
    redis.call('ZADD', producers, whole(at + window), far[i])
  end
end
return { done, oldest_ms, redis.call('ZCOUNT', producers, '-inf', whole(at)) }
