-- HLOOK hash FIELDS 1 field: a field's value and its time left, on a server that expires fields itself.
--   KEYS[1] hash
--   KEYS[2] mark, or nothing
--   ARGV[1] the mark of a native namespace, if its mark is given
--   ARGV[2] FIELDS
--   ARGV[3] 1
--   ARGV[4] the field
-- Returns a list: the value, nil for what is missing; its ms left, -1 for ever, -2 no such field; or an
-- error.
--@include layout
--@include values
if KEYS[2] then
  local problem = refuse_mark(KEYS[2], redis.pcall('GET', KEYS[2]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
end
local value = redis.pcall('HGET', KEYS[1], ARGV[4])
if is_error(value) then
  return value
end
return { value, value and redis.call('HPTTL', KEYS[1], 'FIELDS', 1, ARGV[4])[1] or -2 }
