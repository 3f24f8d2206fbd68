-- What every script on a time shard begins with.
--   KEYS[1] the mark, a string: version:time shards:period in ms
--   ARGV[1] the mark that the caller was written for
--@include layout_error

-- Refuses another layout and foreign keys before anything is written.
-- kinds: what the keys behind the mark must be where they exist. Returns an error reply, or nil; then
-- the second value says whether there is a mark.
local function refuse(kinds)
  local found = redis.pcall('GET', KEYS[1])
  if type(found) == 'table' then
    return layout_error(KEYS[1], 'does not hold the mark of a time shard')
  end
  if found and found ~= ARGV[1] then
    return layout_error(KEYS[1], 'says ' .. found .. ' (version:time shards:period in ms) where '
      .. ARGV[1] .. ' was expected: give every process of the queue the same')
  end
  for i, kind in ipairs(kinds) do
    local is = redis.call('TYPE', KEYS[i + 1])
    is = type(is) == 'table' and is.ok or is
    if is ~= kind and is ~= 'none' then
      return layout_error(KEYS[i + 1], 'holds a ' .. is .. ' where a ' .. kind
        .. ' of a time shard was expected')
    end
  end
  return nil, found and true
end
