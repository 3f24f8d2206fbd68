-- Lists messages whose deadline has passed and that are still there, the earliest first.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] how many to pass over
--   ARGV[2] how many to list
-- Returns { how many there are, id, deadline in ms, text, ... }.
--@include queue
local problem = refuse_facts(KEYS[META], redis.pcall('HMGET', KEYS[META], 'mark'), true)
if problem then
  return problem
end
local at = whole(now())
local listed = { redis.call('ZCOUNT', KEYS[DEADLINES], '-inf', at) }
local found = redis.call('ZRANGEBYSCORE', KEYS[DEADLINES], '-inf', at, 'WITHSCORES', 'LIMIT', ARGV[1], ARGV[2])
for i = 1, #found, 2 do
  listed[#listed + 1] = found[i]
  listed[#listed + 1] = found[i + 1]
  listed[#listed + 1] = redis.call('HGET', KEYS[MESSAGES], found[i]) or ''
end
return listed
