-- Gives deliveries back, to be served again at their accounts' turns, now or after a delay. A message that was
-- delivered too often is set aside.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] mark
--   ARGV[2] queue
--   ARGV[3] ttl in ms
--   ARGV[4] 1 to notify
--   ARGV[5] delay in ms
--   ARGV[6] attempts after which a message is set aside
--   ARGV[7..] for each message: its id, its delivery, the work in us or ''
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
local at, delay = now(), tonumber(ARGV[5])
local facts = facts_of(KEYS, found, 2, at)
if unbelieved then
  return unbelieved
end
local given, wakes = settle(KEYS, facts, ARGV, 7, at, function(a, id, d)
  if d.attempts >= tonumber(ARGV[6]) then
    bury(KEYS, id, d, at)
  elseif delay > 0 then
    d.is_flying, d.place = false, '-'
    save_delivery(KEYS, id, d)
    redis.call('ZADD', KEYS[PARKED], at + delay, id)
    look_at(KEYS, facts, at + delay)
    a.delayed = a.delayed + 1
  else
    put_back(KEYS, a, id, d)
  end
end)
if given > 0 then
  if (wakes or delay > 0) and ARGV[4] == '1' then
    notify(KEYS[NOTIFICATIONS], 'n')
  end
  keep_alive(marked, alive, delay, at)
end
return unbelieved and given == 0 and unbelieved or given
