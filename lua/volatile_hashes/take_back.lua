-- Hands deadlines that the server keeps of fields of a hash back to this package's own keys.
-- KEYS: hash, deadlines, due, mark. ARGV: the mark of an emulated namespace, that of a native one,
-- 1 for all fields of the hash, else 0, then fields. Returns how many had a deadline.
-- From the first hash on, the index shard refuses native commands of processes that know of the change.
--@include hash
--@include layout
local due, mark = KEYS[3], KEYS[4]
local found = redis.call('GET', mark)
-- A full server refuses some writes as a script's first, and allows them behind another write.
redis.call('ZREM', deadlines, '')
if not found or found == ARGV[2] then
  redis.call('SET', mark, ARGV[1])
elseif found ~= ARGV[1] then
  return layout_error(mark, 'says ' .. found .. ' where ' .. ARGV[1] .. ' was expected')
end
if redis.call('TYPE', hash).ok ~= 'hash' then
  return 0
end
local count, fields = 0, ARGV[3] == '1' and redis.call('HKEYS', hash) or arguments(4)
in_runs(1, #fields, function(first, last)
  local times = redis.call('HPEXPIRETIME', hash, 'FIELDS', last - first + 1, unpack(fields, first, last))
  for i, at in ipairs(times) do
    local field = fields[first + i - 1]
    if at >= 0 then
      local score = string.format('%.0f', at)
      redis.call('ZADD', due, 'LT', score, hash)
      redis.call('ZADD', deadlines, score, field)
      redis.call('HPERSIST', hash, 'FIELDS', 1, field)
      count = count + 1
    end
  end
end)
return count
