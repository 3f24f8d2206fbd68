-- Gives back the messages of a read by its receipt alone, for a reader that was interrupted before it had the reply.
-- That delivery is not counted, and its account is not charged. The read may still be under way; then it is granted
-- nothing. What the read said to be done stays done.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] the read's number
--   ARGV[2] 1 to notify
--   ARGV[3] the field of its receipt in meta
-- Returns how many were given back.
--@include settling
--@include receipts
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look', ARGV[3])
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local at, mine = now(), tonumber(ARGV[1])
local facts = facts_of(KEYS, found, 1, at)
local number = number_of_receipt(found[6])
if unbelieved or number and number > mine then
  return unbelieved or 0
end
begin_on_full(KEYS)
local given, wakes = 0, false
for id, delivery in granted_by(number == mine and found[6] or '') do
  local d = meant_by(KEYS, id, delivery)
  local a = d and d.is_flying and account_of_some(KEYS, facts, d.account, at)
  if a then
    local tag_before, s = a.tag, settings_of(KEYS, facts, d.account, a)
    redis.call('ZREM', KEYS[LEASES], id)
    a.flying = math.max(0, a.flying - 1)
    a.tag = math.max(0, a.tag - math.max(1, math.floor(d.charge * 1000 / s.weight)))
    if s.period then
      a.allowed = math.max(0, a.allowed - s.period)
    end
    d.attempts = d.attempts - 1
    put_back(KEYS, a, id, d)
    -- Had there been no read, it would have had its turn all the time: its tag is what it was.
    local virtual = facts.now
    facts.now = 0
    wakes = settle_place(KEYS, facts, d.account, a, s, at, tag_before) or wakes
    facts.now = virtual
    save_account(KEYS, d.account, a)
    given = given + 1
  end
end
if found[1] then
  -- The read may still come; a queue that has gone is not begun for that.
  redis.call('HSET', KEYS[META], ARGV[3], receipt_for(ARGV[1], at, 0, {}))
end
if wakes and ARGV[2] == '1' then
  notify(KEYS[NOTIFICATIONS], 'b')
end
return given
