-- HGETDEL hash FIELDS n field [field ...] on a server that expires fields but lacks the command.
-- KEYS: hash. ARGV: FIELDS, n, fields. Returns a list of values, nil for what is missing.
local values, taken = {}, {}
for i = 3, #ARGV do
  local value = not taken[ARGV[i]] and redis.pcall('HGET', KEYS[1], ARGV[i])
  if type(value) == 'table' then
    return value
  end
  values[i - 2], taken[ARGV[i]] = value, true
end
redis.call('HDEL', KEYS[1], unpack(ARGV, 3))
return values
