-- Says that deliveries are done. Their slots are free, and their accounts are charged for the work.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: 1 to notify, then for each message: its id, its delivery, the work in us or ''.
-- Returns how many were done by this.
--@include settling
local found = redis.pcall('HMGET', KEYS[1], 'mark', 'now', 'delivery', 'rules')
local problem = refuse_facts(KEYS[1], found)
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
  notify(KEYS[18], 'a')
end
return unbelieved and done == 0 and unbelieved or done
