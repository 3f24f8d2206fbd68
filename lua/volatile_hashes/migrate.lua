-- Hands the deadlines of one volatile hash over to the server, which expires fields itself.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] the marks that stay
--   ARGV[2] the mark that takes the place of others
--   ARGV[3] those others
--   ARGV[4] the most fields to hand over ('' for all)
-- Returns how many fields were handed over or, having expired, deleted. From the first hash on, the index
-- shard refuses writers that do not know of the migration.
--@include hash
--@include moving
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local range = { 'ZRANGE', deadlines, 0, -1, 'WITHSCORES' }
if ARGV[4] ~= '' then
  range[4] = ARGV[4] - 1
end
local is_hash, at = redis.call('TYPE', hash).ok == 'hash', now()
local list = is_hash and redis.call(unpack(range)) or {}
local problem
for i = 2, #list, 2 do
  -- The server would refuse it, behind other fields that it has taken.
  if not (is_past(list[i], at) or is_integer(list[i]) and tonumber(list[i]) <= LAST_DEADLINE) then
    problem = problem
      or layout_error(
        deadlines,
        'says ' .. list[i] .. ' as a deadline where a whole number of milliseconds was expected'
      )
  end
end
problem = problem or mark_moving(deadlines, mark, ARGV[1], ARGV[2], ARGV[3])
if problem then
  return problem
end
if not is_hash then
  -- The hash is gone or something else stands at its key: only its deadlines are left.
  redis.call('UNLINK', deadlines)
end
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
