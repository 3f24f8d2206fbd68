-- Notes that a consumer is alive, which keeps its queue, and checks the types of the keys.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] 1 if the caller has just seen that the namespace is there
--   ARGV[5] consumer
-- Returns 1; -1 if the queue has gone since the caller was here: then nothing is changed.
--@include queue
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace')
local problem = refuse_facts(KEYS[META], found)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(found[2])
end
problem = problem or refuse_types(KEYS)
if problem then
  return problem
end
if is_gone(found[1], ARGV[4]) then
  return -1
end
-- On a full server the consumer goes on, because its work makes room. It is only not seen for a while.
local at = now()
if not is_error(redis.pcall('ZADD', KEYS[CONSUMERS], whole(at), ARGV[5])) then
  keep_alive(marked, alive, 0, at)
  if not found[1] then
    redis.call('HSET', KEYS[META], 'mark', FAIR_VERSION)
  end
end
return 1
