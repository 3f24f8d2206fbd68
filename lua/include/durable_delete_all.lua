-- delete_all(): DEL and UNLINK of durable keys.
--@include durable_write

-- KEYS are key, due index, mark, and so on in threes. Looks at all of them before any is deleted.
-- Returns how many were live, or an error reply.
local function delete_all(command)
  local live, at = {}, now()
  for i = 1, #KEYS, 3 do
    local problem, kind = refuse(KEYS[i], KEYS[i + 1], KEYS[i + 2], at)
    if problem then
      return problem
    end
    live[KEYS[i]] = kind == 'string' or nil
  end
  local count = 0
  for i = 1, #KEYS, 3 do
    redis.call(command, KEYS[i])
    redis.call('ZREM', KEYS[i + 1], KEYS[i])
    count = count + (live[KEYS[i]] and 1 or 0)
    live[KEYS[i]] = nil
  end
  return count
end
