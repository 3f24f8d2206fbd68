--@library
-- free_blocks(): the memory of blocks all of whose entries are evicted.
--   KEYS[3] full, KEYS[4] raw, KEYS[5] times, as in the catalogue
--@include layout
--@include values
local full, raw, times = KEYS[3], KEYS[4], KEYS[5]

local function refuse_sets()
  local problem
  for _, key in ipairs({ KEYS[3], KEYS[4], KEYS[5] }) do
    problem = problem or refuse_key('ZCARD', key, 'blocks of a log')
  end
  return problem
end

-- Deletes, from block `kept` on, those before block `stop` whose keys were passed.
-- from: index of the first of these keys, for the block of number `number`; keys: how many they are.
-- Returns the lowest block that may still take memory, and how many were there.
local function free_blocks(kept, stop, from, number, keys)
  local freed = 0
  while kept < stop and kept >= number and kept < number + keys do
    local key = KEYS[from + kept - number]
    freed = freed + redis.call('UNLINK', key)
    local name = whole(kept)
    redis.call('ZREM', full, name)
    redis.call('ZREM', raw, name)
    redis.call('ZREM', times, name)
    kept = kept + 1
  end
  return kept, freed
end
