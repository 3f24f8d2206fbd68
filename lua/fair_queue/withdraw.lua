-- Gives back the messages of a read by its receipt alone, for a reader that was interrupted before it had the reply.
-- That delivery is not counted, and its account is not charged. The read may still be under way; then it is granted
-- nothing. What the read said to be done stays done.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names and behind them the read's receipt
--   ARGV[1] the read's number
--   ARGV[2] 1 to notify
-- Returns how many were given back.
--@include settling
--@include receipt
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local at, mine = now(), tonumber(ARGV[1])
local facts = facts_of(KEYS, found, 1, at)
local text = redis.pcall('GET', KEYS[RECEIPT])
local number, noted = receipt_of(text)
if unbelieved or number and number > mine then
  return unbelieved or 0
end
-- A full server allows a removal, and then the rest of the script.
redis.call('DEL', KEYS[RECEIPT])
local given, wakes = 0, false
for id, delivery in string.gmatch(number == mine and noted or '', '(%w+%-%d%-%d+):(%d+)') do
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
write_receipt(KEYS[RECEIPT], ARGV[1])
if wakes and ARGV[2] == '1' then
  notify(KEYS[NOTIFICATIONS], 'b')
end
return given
