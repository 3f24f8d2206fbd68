-- Forgets messages that were set aside.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: their ids.
-- Returns how many were dead.
--@include queue
local problem = refuse_facts(KEYS[1], redis.pcall('HMGET', KEYS[1], 'mark'))
if problem then
  return problem
end
return redis.call('HDEL', KEYS[14], unpack(ARGV))
