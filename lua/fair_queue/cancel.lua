-- Deletes the message of a tracking id, wherever it is. A consumer that has it in hand is not stopped.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] 1 to notify
--   ARGV[2] tracking id
-- Returns 1 if the message was still there.
--@include message
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local at = now()
local facts = facts_of(KEYS, found, 1, at)
local id = redis.call('HGET', KEYS[TRACKING], ARGV[2])
local text = id and redis.call('HGET', KEYS[MESSAGES], id)
local m = text and parts_of_message(text)
local a = m and account_of_some(KEYS, facts, m.account, at)
if unbelieved then
  return unbelieved
end
if not a then
  redis.call('HDEL', KEYS[TRACKING], ARGV[2])
  return 0
end
local tag_before = a.tag
take_out(KEYS, a, id, delivery_of(KEYS, id))
local wakes = settle_place(KEYS, facts, m.account, a, settings_of(KEYS, facts, m.account, a), at, tag_before)
save_account(KEYS, m.account, a)
redis.call('HINCRBY', KEYS[META], 'cancelled', 1)
if wakes and ARGV[1] == '1' then
  notify(KEYS[NOTIFICATIONS], 'c')
end
return 1
