-- Reads the layout of a namespace, and writes it down if there is none yet.
-- KEYS: the layout, a hash. ARGV: the fields and values of a new layout; none if it is only to be read.
-- Returns field, value, ... of the layout that holds. Errors: WSLAYOUT for a foreign key.
local found = redis.pcall('HGETALL', KEYS[1])
if found.err then
  return redis.error_reply('WSLAYOUT the key ' .. KEYS[1] .. ' does not hold a layout')
end
if #found > 0 or #ARGV == 0 then
  return found
end
local reply = redis.pcall('HSET', KEYS[1], unpack(ARGV))
if type(reply) == 'table' then
  return reply
end
return ARGV
