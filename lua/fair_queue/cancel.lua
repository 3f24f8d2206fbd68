-- Deletes the message of a tracking id, wherever it is. A consumer that has it in hand is not stopped.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: 1 to notify, tracking id.
-- Returns 1 if the message was still there.
--@include message
local found = redis.pcall('HMGET', KEYS[1], 'mark', 'now', 'delivery', 'rules')
local problem = refuse_facts(KEYS[1], found)
if problem then
  return problem
end
local at = now()
local facts = facts_of(KEYS, found, 1, at)
local id = redis.call('HGET', KEYS[15], ARGV[2])
local text = id and redis.call('HGET', KEYS[7], id)
local m = text and parts_of_message(text)
local a = m and account_of(KEYS, m.account)
if unbelieved then
  return unbelieved
end
if not a then
  redis.call('HDEL', KEYS[15], ARGV[2])
  return 0
end
local tag_before = a.tag
take_out(KEYS, a, id, delivery_of(KEYS, id))
local wakes = settle_place(KEYS, facts, m.account, a, settings_of(KEYS, facts, m.account, a), at, tag_before)
save_account(KEYS, m.account, a)
redis.call('HINCRBY', KEYS[1], 'cancelled', 1)
if wakes and ARGV[1] == '1' then
  notify(KEYS[18], 'c')
end
return 1
