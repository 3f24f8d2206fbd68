--@library
-- open_layout(): reads a layout, and writes it down if there is none yet.
--   KEYS[1] the layout, a hash
--@include layout_error

-- new: fields and values of a new layout; none if it is only to be read. Returns field, value, ... of the
-- layout that holds, or an error reply.
local function open_layout(new)
  local found = redis.pcall('HGETALL', KEYS[1])
  if found.err then
    return refusal(found, KEYS[1], 'does not hold a layout')
  end
  if #found > 0 or #new == 0 then
    return found
  end
  local reply = redis.pcall('HSET', KEYS[1], unpack(new))
  return type(reply) == 'table' and reply or new
end
