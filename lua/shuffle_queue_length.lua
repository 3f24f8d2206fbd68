-- Adds up the lengths of some streams of a shuffle queue.
-- KEYS: meta, then the streams. Returns { span: streams 0 to span - 1 were ever in use (0 without a
-- queue), number of entries in the given ones }.
--@include shuffle_queue_look
local problem = foreign_meta(KEYS[1])
if problem then
  return problem
end
local function length(stream)
  local found = redis.pcall('XLEN', stream)
  if type(found) == 'table' then
    problem = layout_error(stream, 'does not hold a stream of a shuffle queue')
    return 0
  end
  return found
end
local sum = 0
for i = 2, #KEYS do
  sum = sum + length(KEYS[i])
end
return problem or { tonumber(redis.call('HGET', KEYS[1], 'span') or 0), sum }
