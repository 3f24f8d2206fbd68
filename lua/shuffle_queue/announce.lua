-- Notes that a consumer is alive, which keeps its queue, and checks the types of its group's keys.
-- KEYS: meta, due index, layout mark, consumers, ring, state, pending, returned, delayed, tracking,
-- dead, deadlines.
-- ARGV: layout mark, queue, ttl in ms, group, consumer, pickup delays that it has seen, in ms.
-- Returns 1; or, having changed nothing, 0 if the group is not registered, -1 if there is no queue
-- at all.
--@include queue
--@include message
local consumers, state = KEYS[4], KEYS[6]
local facts = redis.pcall('HMGET', meta, 'mark', 'group:' .. ARGV[4], 'namespace')
local problem, marked, alive = refuse_queue(facts, facts[3])
if problem then
  return problem
end
local WANTED = { 'zset', 'zset', 'hash', 'zset', 'zset', 'zset', 'hash', 'hash', 'zset' }
for i = 4, 12 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'none' and kind ~= WANTED[i - 3] then
    return layout_error(KEYS[i], 'holds a ' .. kind .. ' where a ' .. WANTED[i - 3] .. ' was expected')
  end
end
if not facts[2] then
  return facts[1] and 0 or -1
end
-- On a full server the consumer goes on, because its work makes room. It is only not seen for a while.
if not is_error(redis.pcall('ZADD', consumers, whole(now()), ARGV[5])) then
  keep_alive(marked, alive)
end
if ARGV[6] ~= '' then
  count_delays(state, ARGV[6])
end
return 1
