-- Notes that a consumer is alive, which keeps its queue, and checks the types of the keys.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: layout mark, queue, ttl in ms, consumer.
-- Returns 1.
--@include queue
local found = redis.pcall('HMGET', KEYS[1], 'mark', 'namespace')
local problem = refuse_facts(KEYS[1], found)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(found[2])
end
problem = problem or refuse_types(KEYS)
if problem then
  return problem
end
-- On a full server the consumer goes on, because its work makes room. It is only not seen for a while.
local at = now()
if not is_error(redis.pcall('ZADD', KEYS[19], whole(at), ARGV[4])) then
  keep_alive(marked, alive, 0, at)
  if not found[1] then
    redis.call('HSET', KEYS[1], 'mark', FAIR_VERSION)
  end
end
return 1
