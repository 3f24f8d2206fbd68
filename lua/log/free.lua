--@library
-- free_blocks(): the memory of blocks all of whose entries are evicted.
--   full, raw, times: as in the catalogue
--@include layout
--@include values

local function refuse_sets(full, raw, times)
  local problem
  for _, key in ipairs({ full, raw, times }) do
    problem = problem or refuse_key('ZCARD', key, 'blocks of a log')
  end
  return problem
end

-- Deletes, from block `kept` on, those before block `stop` whose keys were passed.
-- from: index of the first of these keys, for the block of number `number`; many: how many they are.
-- Returns the lowest block that may still take memory, and how many were there.
local function free_blocks(keys, full, raw, times, kept, stop, from, number, many)
  local freed = 0
  while kept < stop and kept >= number and kept < number + many do
    local key = keys[from + kept - number]
    freed = freed + redis.call('UNLINK', key)
    local name = whole(kept)
    redis.call('ZREM', full, name)
    redis.call('ZREM', raw, name)
    redis.call('ZREM', times, name)
    kept = kept + 1
  end
  return kept, freed
end
