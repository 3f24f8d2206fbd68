-- Moves a field, with its deadline, on a server that expires fields itself.
--   KEYS[1] hash of the source
--   KEYS[2] hash of the destination
--   KEYS[3..] the mark of each, or nothing; the destination's leases
--   ARGV[1] the mark of a native namespace, if the marks are given
--   ARGV[2] FIELDS
--   ARGV[3] 2
--   ARGV[4] the field
--   ARGV[5] its new name
-- Returns 1, 0: no such field, or an error reply; then nothing was changed. No computer of the new one stores
-- anything over it.
--@include layout
--@include values
--@include leases
local leases = KEYS[#KEYS]
local problem = refuse_leases(leases)
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
void(leases, { to_field })
return 1
