-- Lists messages whose deadline has passed and that are still there, the earliest first.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: how many to pass over, how many to list.
-- Returns { how many there are, id, deadline in ms, text, ... }.
--@include queue
local problem = refuse_facts(KEYS[1], redis.pcall('HMGET', KEYS[1], 'mark'), true)
if problem then
  return problem
end
local at = whole(now())
local listed = { redis.call('ZCOUNT', KEYS[17], '-inf', at) }
local found = redis.call('ZRANGEBYSCORE', KEYS[17], '-inf', at, 'WITHSCORES', 'LIMIT', ARGV[1], ARGV[2])
for i = 1, #found, 2 do
  listed[#listed + 1] = found[i]
  listed[#listed + 1] = found[i + 1]
  listed[#listed + 1] = redis.call('HGET', KEYS[7], found[i]) or ''
end
return listed
