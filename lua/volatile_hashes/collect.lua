-- Collects one volatile hash: for sweeps, and for a server that is out of memory and refuses every MULTI.
-- KEYS: hash, deadlines, due. ARGV: the most fields to delete. Returns how many were deleted.
-- A full server lets a script delete, and then lets it write: so the deletes come first.
--@include hash
local due, limit = KEYS[3], ARGV[1]
if redis.call('TYPE', hash).ok ~= 'hash' then
  redis.call('UNLINK', deadlines)
end
local past = redis.call(
  'ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', now()), 'LIMIT', 0, limit
)
in_runs(1, #past, function(first, last)
  redis.call('HDEL', hash, unpack(past, first, last))
  redis.call('ZREM', deadlines, unpack(past, first, last))
end)
redis.call('ZREM', due, hash)
local first = redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')
local next_due = first[2] and tonumber(first[2])
local left = redis.call('PTTL', hash)
if next_due and left >= 0 then
  next_due = math.min(next_due, now() + left + 1)
end
if next_due then
  redis.call('ZADD', due, string.format('%.0f', next_due), hash)
end
return #past
