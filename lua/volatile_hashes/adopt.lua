-- Gives fields of a hash that another program wrote their deadlines; the caller WATCHes what it has read.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   KEYS[5] the program's own sorted set of deadlines, if it has one
--   ARGV[1] mark
--   ARGV[2] n
--   ARGV[3..] n times milliseconds since the epoch and a field, then members to take out of that sorted set
-- Returns n, or 0 and changes nothing if the hash is gone.
--@include hash
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('EXISTS', hash) == 0 then
  return 0
end
local problem = refuse(hash, deadlines, due, mark, ARGV[1], true)
if problem then
  return problem
end
local count, earliest = tonumber(ARGV[2]), nil
local last_pair = 2 + 2 * count
for i = 3, last_pair, 2 do
  earliest = math.min(earliest or tonumber(ARGV[i]), tonumber(ARGV[i]))
end
problem = schedule(due, hash, earliest)
if problem then
  return problem
end
in_runs(3, last_pair, function(first, last)
  redis.call('ZADD', deadlines, unpack(ARGV, first, last))
end)
in_runs(last_pair + 1, #ARGV, function(first, last)
  redis.call('ZREM', KEYS[5], unpack(ARGV, first, last))
end)
return count
