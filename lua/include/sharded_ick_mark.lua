-- mark_state(key, mine): compares the mark of an ick shard, "version:generation:ick_shards", with
-- the caller's. Returns an error reply, or nil and one of
--   'same'
--   'older': the layout has changed since the ick shard was last written; the caller may go on
--   'newer': the caller's layout is out of date; it must change nothing and read the layout again
-- A missing mark is an older one. Generations are tokens.
--@include ick
--@include token
local function mark_state(key, mine)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then
    return layout_error(key, 'does not hold the mark of an ick shard')
  end
  if found == mine then
    return nil, 'same'
  end
  if not found then
    return nil, 'older'
  end
  local release, generation = string.match(found, '^(%d+):(%d+):')
  local my_release, my_generation = string.match(mine, '^(%d+):(%d+):')
  if release ~= my_release then
    return layout_error(key, 'says ' .. found .. ' where ' .. mine .. ' was expected')
  end
  return nil, is_greater(generation, my_generation) and 'newer' or 'older'
end
