-- live_value(): what a reader may see of a durable key.
--@include durable

-- Returns the value, false from the deadline on, or the error reply for another type; and the error
-- reply for a foreign due index, or nil. Two commands, and a third if there is a deadline.
local function live_value(key, due)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then
    return value
  end
  local deadline, problem = indexed_deadline(key, due)
  if problem then
    return nil, problem
  end
  if deadline and deadline <= now() then
    return false
  end
  return value
end
