--@library
-- increment(): HINCRBY of a script, with condition FXX only of a field that exists.

-- Returns the sum, false: the condition is not met, or an error reply. Lua's numbers are exact up to
-- 2^53 only, so a larger sum is text.
local function increment(hash, field, amount, condition)
  if condition == 'FXX' then
    local found = redis.pcall('HEXISTS', hash, field)
    if found ~= 1 then
      return type(found) == 'table' and found
    end
  end
  local reply = redis.pcall('HINCRBY', hash, field, amount)
  if type(reply) == 'number' and math.abs(reply) >= 2 ^ 53 then
    return redis.call('HGET', hash, field)
  end
  return reply
end
