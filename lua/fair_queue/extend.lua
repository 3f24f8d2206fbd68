-- Says that deliveries are still being worked on: their leases begin again, and so does the queue's time to live.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] lease in ms
--   ARGV[5..] for each message: its id, its delivery
-- Returns how many were still that delivery.
--@include settling
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
local marked, alive
if not problem then
  problem, marked, alive = refuse_place(found[2])
end
if problem then
  return problem
end
local at, extended = now(), 0
local facts = facts_of(KEYS, found, 2, at)
if unbelieved then
  return unbelieved
end
for i = 5, #ARGV, 2 do
  local d = meant_by(KEYS, ARGV[i], ARGV[i + 1])
  if d and d.is_flying then
    -- A full server allows a removal as a first write, and then the rest.
    redis.call('ZREM', KEYS[LEASES], ARGV[i])
    redis.call('ZADD', KEYS[LEASES], at + ARGV[4], ARGV[i])
    extended = extended + 1
  end
end
if extended > 0 then
  look_at(KEYS, facts, at + ARGV[4])
  keep_alive(marked, alive, ARGV[4], at)
end
return extended
