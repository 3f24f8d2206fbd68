-- HGETDEL hash FIELDS n field [field ...] on a server that expires fields but lacks the command.
--   KEYS[1] hash
--   KEYS[2] mark, or nothing
--   ARGV[1] the mark of a native namespace, if its mark is given
--   ARGV[2] FIELDS
--   ARGV[3] n
--   ARGV[4..] fields
-- Returns a list of values, nil for what is missing, or an error reply; then nothing was changed.
--@include layout
if KEYS[2] then
  local problem = refuse_mark(KEYS[2], redis.pcall('GET', KEYS[2]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
end
local values, taken = {}, {}
for i = 4, #ARGV do
  local value = not taken[ARGV[i]] and redis.pcall('HGET', KEYS[1], ARGV[i])
  if type(value) == 'table' then
    return value
  end
  values[i - 3], taken[ARGV[i]] = value, true
end
redis.call('HDEL', KEYS[1], unpack(ARGV, 4))
return values
