-- Counts the messages of a queue.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: how many consumers to name at most, then the fields of meta that are counts.
-- Returns { server's time in ms, messages, in flight, given back, delayed, dead, accounts, ready, limited, idle, rules, the
-- end of the first lease in ms or '', known consumers, consumers and when they were seen as a list, counts }.
--@include queue
local problem = refuse_facts(KEYS[1], redis.pcall('HMGET', KEYS[1], 'mark'), true)
if problem then
  return problem
end
local counts = redis.call('HMGET', KEYS[1], unpack(ARGV, 2))
for i = 1, #counts do
  counts[i] = stored(KEYS[1], ARGV[i + 1], counts[i], 0, MOST_STORED, 0)
end
if unbelieved then
  return unbelieved
end
return {
  now(), redis.call('HLEN', KEYS[7]), redis.call('ZCARD', KEYS[8]), redis.call('HLEN', KEYS[10]), redis.call('ZCARD', KEYS[11]),
  redis.call('HLEN', KEYS[14]), redis.call('HLEN', KEYS[4]), redis.call('ZCARD', KEYS[6]), redis.call('ZCARD', KEYS[12]),
  redis.call('ZCARD', KEYS[13]), redis.call('HLEN', KEYS[5]), redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2] or '',
  redis.call('ZCARD', KEYS[19]), redis.call('ZREVRANGE', KEYS[19], 0, ARGV[1] - 1, 'WITHSCORES'), counts,
}
