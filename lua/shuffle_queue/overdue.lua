-- Lists messages of a shuffle queue whose deadline has passed, the earliest deadline first.
-- KEYS: meta, deadlines. ARGV: how many to pass over, how many at most.
-- Returns { how many there are in all, member of the index, its deadline in ms, ... }.
--@include upkeep
local deadlines = KEYS[2]
local problem = refuse_meta(true) or refuse_key('ZCARD', deadlines, 'an index of deadlines')
if problem then
  return problem
end
local total = redis.call('ZCOUNT', deadlines, '-inf', whole(now()))
local last = math.min(total, ARGV[1] + ARGV[2]) - 1
local reply = { total }
if last >= tonumber(ARGV[1]) then
  local found = redis.call('ZRANGE', deadlines, ARGV[1], whole(last), 'WITHSCORES')
  for i = 1, #found, 2 do
    place_of(deadlines, found[i])
    stored(deadlines, 'a deadline in ms', found[i + 1], 0, MOST_STORED)
  end
  if unbelieved then
    return unbelieved
  end
  for i = 1, #found do
    reply[i + 1] = found[i]
  end
end
return reply
