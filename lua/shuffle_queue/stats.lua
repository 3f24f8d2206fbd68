-- Reads one group's own keys of a shuffle queue. A look at the streams follows.
-- KEYS: meta, the group's state, its returned entries, its delayed ones, its consumers, its dead.
-- ARGV: the most consumers to name, the group, pickup delays in ms that the caller has seen since,
-- then the counters of the state that are asked for. Returns { time in ms, span, number of
-- cancelled messages, number of returned entries, of delayed ones, of dead ones,
-- number of consumers, those seen last with when each was seen, the counters, 1 if the group has
-- read the queue }.
--@include upkeep
local facts = redis.pcall('HMGET', meta, 'mark', 'span', 'cancelled', 'group:' .. ARGV[2])
local state, returned, delayed, consumers, dead = KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local problem, is_only_readable = refuse(facts, true)
problem = problem
  or refuse_key('HLEN', state, 'the state of a group')
  or refuse_key('ZCARD', returned, 'returned entries')
  or refuse_key('ZCARD', delayed, 'delayed entries')
  or refuse_key('ZCARD', consumers, 'the consumers of a group')
  or refuse_key('HLEN', dead, 'dead messages')
local span, cancelled = 0, 0
if not problem then
  span, cancelled = span_of(facts[2]), stored(meta, 'cancelled', facts[3], 0, MOST_STORED, 0)
  problem = unbelieved
end
if problem then
  return problem
end
if facts[4] and not is_only_readable then
  count_delays(state, ARGV[3])
end
local counters = redis.call('HMGET', state, unpack(ARGV, 4))
for i = 1, #counters do
  counters[i] = stored(state, ARGV[i + 3], counters[i], 0, MOST_STORED, 0)
end
local seen = redis.call('ZREVRANGE', consumers, 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #seen, 2 do
  stored(consumers, 'when a consumer was seen', seen[i + 1], 0, MOST_STORED)
end
if unbelieved then
  return unbelieved
end
return {
  now(),
  span,
  cancelled,
  redis.call('ZCARD', returned),
  redis.call('ZCARD', delayed),
  redis.call('HLEN', dead),
  redis.call('ZCARD', consumers),
  seen,
  counters,
  facts[4] and 1 or 0,
}
