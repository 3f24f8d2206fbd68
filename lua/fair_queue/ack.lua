-- Says that deliveries are done. Their slots are free, and their accounts are charged for the work.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] 1 to notify
--   ARGV[2..] for each message: its id, its delivery, the work in us or ''
-- Returns how many were done by this.
--@include settling
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local at = now()
local facts = facts_of(KEYS, found, 1, at)
if unbelieved then
  return unbelieved
end
local done, wakes = settle(KEYS, facts, ARGV, 2, at)
if wakes and ARGV[1] == '1' then
  notify(KEYS[NOTIFICATIONS], 'a')
end
return unbelieved and done == 0 and unbelieved or done
