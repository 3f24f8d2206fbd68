-- Hands the deadlines of one volatile hash over to the server, which expires fields itself.
-- KEYS: hash, deadlines, due, mark. ARGV: three of marks (moving.lua), and the most fields to hand over
-- ('' for all). Returns how many fields were handed over or, having expired, deleted.
-- From the first hash on, the index shard refuses writers that do not know of the migration.
--@include hash
--@include moving
local due = KEYS[3]
local problem = mark_moving()
if problem then
  return problem
end
if redis.call('TYPE', hash).ok ~= 'hash' then
  -- The hash is gone or something else stands at its key: only its deadlines are left.
  redis.call('UNLINK', deadlines)
end
local range = { 'ZRANGE', deadlines, 0, -1, 'WITHSCORES' }
if ARGV[4] ~= '' then
  range[4] = ARGV[4] - 1
end
local list, at = redis.call(unpack(range)), now()
for i = 1, #list, 2 do
  if is_past(list[i + 1], at) then
    redis.call('HDEL', hash, list[i])
  else
    redis.call('HPEXPIREAT', hash, list[i + 1], 'FIELDS', 1, list[i])
  end
  redis.call('ZREM', deadlines, list[i])
end
if redis.call('EXISTS', deadlines) == 0 then
  redis.call('ZREM', due, hash)
end
return #list / 2
