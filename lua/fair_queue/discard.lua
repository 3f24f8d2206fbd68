-- Forgets messages that were set aside.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1..] ids
-- Returns how many were dead.
--@include queue
local problem = refuse_facts(KEYS[META], redis.pcall('HMGET', KEYS[META], 'mark'))
if problem then
  return problem
end
return redis.call('HDEL', KEYS[DEAD], unpack(ARGV))
