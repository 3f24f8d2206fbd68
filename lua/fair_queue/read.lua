-- Serves messages to a consumer: of the accounts that have a turn, the one with the least tag.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] consumer
--   ARGV[2] the read's number
--   ARGV[3] the field of its receipt in meta
--   ARGV[4] how many messages
--   ARGV[5] lease in ms
--   ARGV[6] attempts after which a message is set aside
--   ARGV[7] 1 for messages of one account only
--   ARGV[8] 1 to notify
--   ARGV[9..] for each message that is done: its id, its delivery, the work in us or ''
-- Returns { kind, server's time in ms, how many of the done were still the consumer's, ... }. kind 0: then messages, each
-- { id, delivery, attempts, text }; 1: there is nothing: last id of the notifications, ms until something may come or -1;
-- 2: nothing was found, and the read is to look again; 3: this read was granted messages before, which have gone.
--@include serving
--@include receipts
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look', ARGV[3])
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local consumer, most, lease, attempts = ARGV[1], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local at = now()
local facts = facts_of(KEYS, found, 1, at)
if unbelieved then
  return unbelieved
end
local done, wakes = 0, false
local sent = number_of_receipt(found[6])
if sent and sent >= tonumber(ARGV[2]) then
  --@include settling
  --@include receipts
  begin_on_full(KEYS)
  local again = {}
  -- One with a lower number is from long ago, and gets nothing.
  for id, number in granted_by(sent == tonumber(ARGV[2]) and found[6] or '') do
    local d = meant_by(KEYS, id, number)
    local text = d and d.is_flying and redis.call('HGET', KEYS[MESSAGES], id)
    if text then
      -- Its lease begins again, because somebody hears of it only now.
      redis.call('ZADD', KEYS[LEASES], at + lease, id)
      again[#again + 1] = { id, d.number, d.attempts, text }
    end
  end
  done = done_by(found[6])
  return again[1] and { 0, at, done, unpack(again) } or { 3, at, done }
end
if ARGV[9] then
  --@include settling
  done, wakes = settle(KEYS, facts, ARGV, 9, at)
end
local served, is_empty, woken = {}, true, false
if most > 0 then
  local is_served
  is_served, served, is_empty, woken = pcall(serve, KEYS, facts, consumer, most, lease, attempts, ARGV[7] == '1', at)
  if not is_served then
    if facts.turn then
      redis.call('ZADD', KEYS[READY], facts.turn_tag, facts.turn)
    end
    error(served, 0)
  end
end
if unbelieved and not served[1] and done == 0 then
  return unbelieved
end
if #served > 0 or done > 0 then
  local text = receipt_for(ARGV[2], at, done, served)
  redis.call('HSET', KEYS[META], 'now', whole(facts.now), 'delivery', whole(facts.delivery), ARGV[3], text)
end
if (wakes or woken) and ARGV[8] == '1' then
  notify(KEYS[NOTIFICATIONS], 'r')
end
if served[1] then
  return { 0, at, done, unpack(served) }
end
if not is_empty then
  return { 2, at, done }
end
local moment = next_moment(KEYS)
local wait = moment and math.max(0, moment - at) or -1
local last = redis.call('XREVRANGE', KEYS[NOTIFICATIONS], '+', '-', 'COUNT', 1)
return { 1, at, done, last[1] and last[1][1] or '0-0', wait }
