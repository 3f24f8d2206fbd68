--@library
-- Commands on more values than one call should pass or return.

-- Runs a command on a key and a list from its index first on. Returns the sum of the replies, numbers.
local function call_in_runs(command, key, list, first)
  local sum = 0
  while first <= #list do
    local last = math.min(first + 3999, #list)
    sum = sum + redis.call(command, key, unpack(list, first, last))
    first = last + 1
  end
  return sum
end

-- Some entries of a hash, for a caller who sorts them. Bounded, however large the hash is.
-- Arguments: key; cursor: where to go on, '0' at first; most: how many to return, some tens more at most. Returns the next cursor,
-- '0' at the end, and a flat list of fields and values, of which one may come twice.
local function some_of(key, cursor, most)
  local found = {}
  repeat
    local page = redis.call('HSCAN', key, cursor, 'COUNT', math.min(100, most))
    cursor = tostring(page[1])
    for i = 1, #page[2] do
      found[#found + 1] = page[2][i]
    end
  until cursor == '0' or #found >= 2 * most
  return cursor, found
end
