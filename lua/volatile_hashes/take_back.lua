-- Moves the deadlines of a hash's fields from the server back into this package's own keys.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] the marks that stay
--   ARGV[2] the mark that takes the place of others
--   ARGV[3] those others
--   ARGV[4] 1 for all fields of the hash, else 0
--   ARGV[5..] fields
-- Returns how many had a deadline. From the first hash on, the index shard refuses native commands of
-- processes that know of the change, and commands of processes that take the namespace for emulated since
-- before it was native.
--@include hash
--@include moving
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = mark_moving(deadlines, mark, ARGV[1], ARGV[2], ARGV[3])
if problem then
  return problem
end
if redis.call('TYPE', hash).ok ~= 'hash' then
  return 0
end
local count, fields = 0, ARGV[4] == '1' and redis.call('HKEYS', hash) or arguments(ARGV, 5)
in_runs(1, #fields, function(first, last)
  local times = redis.call('HPEXPIRETIME', hash, 'FIELDS', last - first + 1, unpack(fields, first, last))
  for i, at in ipairs(times) do
    local field = fields[first + i - 1]
    local value = at >= 0 and redis.call('HGET', hash, field)
    if value then
      local score = string.format('%.0f', at)
      redis.call('ZADD', due, 'LT', score, hash)
      redis.call('ZADD', deadlines, score, field)
      -- HSET drops the server's deadline, as HPERSIST does. But Redis 8 replays its AOF by the clock of the
      -- replay: behind that deadline HPERSIST finds no field any more, and HSET writes it anew.
      redis.call('HSET', hash, field, value)
      count = count + 1
    end
  end
end)
return count
