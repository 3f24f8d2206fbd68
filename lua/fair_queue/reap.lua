-- Frees the slots of lapsed deliveries, deletes messages past their deadline, and forgets idle accounts and consumers.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] how many items at most
--   ARGV[2] attempts after which a message is set aside
--   ARGV[3] ms after which an unseen consumer is forgotten
--   ARGV[4] 1 to notify
--   ARGV[5] 1 to count alone
-- Returns { lapsed, overdue, accounts, consumers, how many deliveries had lapsed, for how many ms the first one had }.
--@include message
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found, ARGV[5] == '1')
problem = problem or refuse_types(KEYS)
if problem then
  return problem
end
local most, attempts, is_dry = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[5] == '1'
local at = now()
local facts = facts_of(KEYS, found, 1, at)
if unbelieved then
  return unbelieved
end
if not is_dry then
  begin_on_full(KEYS)
end
local lapsing = redis.call('ZCOUNT', KEYS[LEASES], '-inf', at)
local first = redis.call('ZRANGE', KEYS[LEASES], 0, 0, 'WITHSCORES')[2]
local oldest = lapsing > 0 and math.max(0, at - tonumber(first)) or 0
local lapsed, wakes = math.min(most, lapsing), false
if not is_dry then
  lapsed, wakes = reclaim(KEYS, facts, most, attempts, at)
end
local left, overdue = most - lapsed, 0
-- A consumer may have those at the head in hand; they stay.
local past = left > 0 and redis.call('ZRANGEBYSCORE', KEYS[DEADLINES], '-inf', at, 'LIMIT', 0, 4 * left) or {}
for i = 1, #past do
  local id = past[i]
  local d = delivery_of(KEYS, id)
  if overdue < left and not (d and d.is_flying) then
    overdue = overdue + 1
    local text = redis.call('HGET', KEYS[MESSAGES], id)
    local m = text and parts_of_message(text)
    local a = m and not is_dry and account_of_some(KEYS, facts, m.account, at)
    if not m and not is_dry then
      redis.call('ZREM', KEYS[DEADLINES], id)
    end
    if a then
      local tag_before = a.tag
      take_out(KEYS, a, id, d)
      wakes = settle_place(KEYS, facts, m.account, a, settings_of(KEYS, facts, m.account, a), at, tag_before) or wakes
      save_account(KEYS, m.account, a)
      redis.call('HINCRBY', KEYS[META], 'overdue', 1)
    end
  end
end
left = left - overdue
-- The tag of an idle account says something as long as the virtual time has not come to it. Where nothing waits and
-- nobody works, no tag says anything.
local until_tag = whole(facts.now)
if redis.call('ZCARD', KEYS[READY]) == 0 and redis.call('ZCARD', KEYS[LEASES]) == 0 then
  until_tag = '+inf'
end
local idle = left > 0 and redis.call('ZRANGEBYSCORE', KEYS[IDLE], '-inf', until_tag, 'LIMIT', 0, left) or {}
for i = 1, #idle do
  if not is_dry then
    local a = account_of(KEYS, idle[i])
    redis.call('ZREM', KEYS[IDLE], idle[i])
    if a and a.place == IS_IDLE and a.waiting + a.flying + a.delayed == 0 then
      redis.call('HDEL', KEYS[ACCOUNTS], idle[i])
    end
  end
end
left = left - #idle
local gone = 0
if left > 0 then
  local unseen = whole(at - ARGV[3])
  gone = redis.call('ZRANGEBYSCORE', KEYS[CONSUMERS], '-inf', unseen, 'LIMIT', 0, left)
  if #gone > 0 and not is_dry then
    redis.call('ZREM', KEYS[CONSUMERS], unpack(gone))
  end
  gone = #gone
end
if wakes and ARGV[4] == '1' then
  notify(KEYS[NOTIFICATIONS], 'p')
end
return { lapsed, overdue, #idle, gone, lapsing, oldest }
