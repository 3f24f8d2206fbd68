-- Says that deliveries are still being worked on: their leases begin again, and so does the queue's time to live.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: layout mark, queue, ttl in ms, lease in ms, then for each message: its id, its delivery.
-- Returns how many were still that delivery.
--@include settling
local found = redis.pcall('HMGET', KEYS[1], 'mark', 'namespace')
local problem = refuse_facts(KEYS[1], found)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(found[2])
end
if problem then
  return problem
end
local at, extended = now(), 0
for i = 5, #ARGV, 2 do
  local d = meant_by(KEYS, ARGV[i], ARGV[i + 1])
  if d and d.is_flying then
    -- A full server allows a removal as a first write, and then the rest.
    redis.call('ZREM', KEYS[8], ARGV[i])
    redis.call('ZADD', KEYS[8], whole(at + ARGV[4]), ARGV[i])
    extended = extended + 1
  end
end
if extended > 0 then
  keep_alive(marked, alive, 0, at)
end
return extended
