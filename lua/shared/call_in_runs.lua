--@library
-- call_in_runs(): one command on more values than one call of unpack() can pass.

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
