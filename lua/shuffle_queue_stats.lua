-- Says what one group's own keys of a shuffle queue say, before its streams are looked at.
-- KEYS: meta, the group's state, its returned entries, its delayed ones, its consumers, its dead.
-- ARGV: the group, the most consumers to name. Returns { time in ms, span ('' without a queue), 1
-- if the group has joined, number of returned entries, of delayed ones, of dead ones, number of
-- consumers, those seen last with when each was seen, all fields of the state }.
--@include now
--@include shuffle_queue_look
local problem = foreign_meta(KEYS[1])
if problem then
  return problem
end
local about = redis.call('HMGET', KEYS[1], 'span', 'group:' .. ARGV[1])
local function size(command, key)
  local found = redis.pcall(command, key)
  if type(found) == 'table' then
    problem = layout_error(key, 'does not hold what is known of a group of a shuffle queue')
    return 0
  end
  return found
end
local returned = size('ZCARD', KEYS[3])
local delayed = size('ZCARD', KEYS[4])
local consumers = size('ZCARD', KEYS[5])
local dead = size('HLEN', KEYS[6])
size('HLEN', KEYS[2])
if problem then
  return problem
end
return {
  now(),
  about[1] or '',
  about[2] and 1 or 0,
  returned,
  delayed,
  dead,
  consumers,
  redis.call('ZREVRANGE', KEYS[5], 0, ARGV[2] - 1, 'WITHSCORES'),
  redis.call('HGETALL', KEYS[2]),
}
