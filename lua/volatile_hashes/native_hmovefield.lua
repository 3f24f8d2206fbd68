-- Moves a field, with its deadline, on a server that expires fields itself.
-- KEYS: hash of the source, of the destination, [mark of each,] the destination's leases. ARGV: the mark of
-- a native namespace if the marks are given, FIELDS, 2, the field, its new name.
-- Returns 1, 0: no such field, or an error reply; then nothing was changed. No computer of the new one
-- stores anything over it.
--@include layout
--@include values
--@include leases
local problem = refuse_leases()
if problem then
  return problem
end
for i = 3, #KEYS - 1 do
  problem = refuse_mark(KEYS[i], redis.pcall('GET', KEYS[i]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
end
local field, to_field = ARGV[4], ARGV[5]
local value = redis.pcall('HGET', KEYS[1], field)
if is_error(value) then
  return value
end
if not value then
  return 0
end
local at = redis.call('HPEXPIRETIME', KEYS[1], 'FIELDS', 1, field)[1]
local written
if at >= 0 then
  at = string.format('%.0f', at)
  written = redis.pcall('HSETEX', KEYS[2], 'PXAT', at, 'FIELDS', 1, to_field, value)
else
  written = redis.pcall('HSET', KEYS[2], to_field, value)
end
if is_error(written) then
  return written
end
redis.call('HDEL', KEYS[1], field)
void({ to_field })
return 1
