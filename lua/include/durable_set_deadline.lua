-- set_deadline(): another deadline for a durable key.
--@include durable_write

-- Gives a key that stands another deadline, or deletes it if that has passed. Returns an error reply or
-- nil.
local function set_deadline(key, due, mark, found, deadline, at)
  if deadline <= at then
    remove(key, due)
    return nil
  end
  local problem = schedule(key, due, mark, found, deadline)
  if not problem then
    -- A time to live of the server's, which somebody else has set.
    redis.call('PERSIST', key)
  end
  return problem
end
