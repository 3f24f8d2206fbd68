-- Serves messages to a consumer: of the accounts that have a turn, the one with the least tag.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names and behind them the read's receipt
--   ARGV[1] consumer
--   ARGV[2] the read's number
--   ARGV[3] how many messages
--   ARGV[4] lease in ms
--   ARGV[5] attempts after which a message is set aside
--   ARGV[6] 1 for messages of one account only
--   ARGV[7] 1 to notify
--   ARGV[8..] for each message that is done: its id, its delivery, the work in us or ''
-- Returns { kind, server's time in ms, how many of the done were still the consumer's, ... }. kind 0: then messages, each
-- { id, delivery, attempts, text }; 1: there is nothing: last id of the notifications, ms until something may come or -1;
-- 2: nothing was found, and the read is to look again; 3: this read was granted messages before, which have gone.
--@include serving
--@include settling
--@include receipt
local found = redis.pcall('HMGET', KEYS[META], 'mark', 'now', 'delivery', 'rules', 'look')
local problem = refuse_facts(KEYS[META], found)
if problem then
  return problem
end
local consumer, most, lease, attempts = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local at = now()
local facts = facts_of(KEYS, found, 1, at)
if unbelieved then
  return unbelieved
end
-- A full server allows this removal as a first write, and then the rest: its consumers make room.
local before = redis.pcall('GETDEL', KEYS[RECEIPT])
local sent, noted = receipt_of(before)
local done, wakes = 0, false
if sent and sent >= tonumber(ARGV[2]) then
  redis.call('SET', KEYS[RECEIPT], before, 'PX', UNDER_WAY_MS)
  local again = {}
  -- One with a lower number is from long ago, and gets nothing.
  for id, number in string.gmatch(sent == tonumber(ARGV[2]) and noted or '', '(%w+%-%d%-%d+):(%d+)') do
    local d = meant_by(KEYS, id, number)
    local text = d and d.is_flying and redis.call('HGET', KEYS[MESSAGES], id)
    if text then
      -- Its lease begins again, because somebody hears of it only now.
      redis.call('ZADD', KEYS[LEASES], at + lease, id)
      again[#again + 1] = { id, d.number, d.attempts, text }
    end
  end
  done = tonumber(string.match(noted, ' d(%d+)') or 0)
  return again[1] and { 0, at, done, unpack(again) } or { 3, at, done }
end
if ARGV[8] then
  done, wakes = settle(KEYS, facts, ARGV, 8, at)
end
local served, is_empty, woken = {}, true, false
if most > 0 then
  served, is_empty, woken = serve(KEYS, facts, consumer, most, lease, attempts, ARGV[6] == '1', at)
end
if unbelieved and not served[1] and done == 0 then
  return unbelieved
end
if #served > 0 or done > 0 then
  local granted = { ARGV[2], 'd' .. done }
  for i = 1, #served do
    granted[i + 2] = served[i][1] .. ':' .. served[i][2]
  end
  write_receipt(KEYS[RECEIPT], table.concat(granted, ' '))
end
if (wakes or woken) and ARGV[7] == '1' then
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
