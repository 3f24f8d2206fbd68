-- Counts the messages of a queue.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] how many consumers to name at most
--   ARGV[2..] the fields of meta that are counts
-- Returns { server's time in ms, messages, in flight, given back, delayed, dead, accounts, ready, limited, idle, rules, the
-- end of the first lease in ms or '', known consumers, consumers and when they were seen as a list, counts }.
--@include queue
local problem = refuse_facts(KEYS[META], redis.pcall('HMGET', KEYS[META], 'mark'), true)
if problem then
  return problem
end
local counts = redis.call('HMGET', KEYS[META], unpack(ARGV, 2))
for i = 1, #counts do
  counts[i] = stored(KEYS[META], ARGV[i + 1], counts[i], 0, MOST_STORED, 0)
end
if unbelieved then
  return unbelieved
end
return {
  now(), redis.call('HLEN', KEYS[MESSAGES]), redis.call('ZCARD', KEYS[LEASES]), redis.call('HLEN', KEYS[BACK]), redis.call('ZCARD', KEYS[PARKED]),
  redis.call('HLEN', KEYS[DEAD]), redis.call('HLEN', KEYS[ACCOUNTS]), redis.call('ZCARD', KEYS[READY]), redis.call('ZCARD', KEYS[LIMITED]),
  redis.call('ZCARD', KEYS[IDLE]), redis.call('HLEN', KEYS[RULES]), redis.call('ZRANGE', KEYS[LEASES], 0, 0, 'WITHSCORES')[2] or '',
  redis.call('ZCARD', KEYS[CONSUMERS]), redis.call('ZREVRANGE', KEYS[CONSUMERS], 0, ARGV[1] - 1, 'WITHSCORES'), counts,
}
