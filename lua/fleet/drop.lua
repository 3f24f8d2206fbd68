-- Removes a key that has been carried to another node of a fleet, with what is beside it, unless it
-- has been written here again since: then the key has another token, or has none yet.
--   KEYS[1] key
--   KEYS[2] the tokens of leaving keys
--   KEYS[3] due index
--   KEYS[4..] the leases and deadlines of a volatile hash
--   ARGV[1] the type of the key: a key of another type is somebody else's and stays
--   ARGV[2] its token
-- Returns 1 if it was removed, else 0.
--@include layout
local leaving = KEYS[2]
local problem = refuse_key('HLEN', leaving, 'the tokens of leaving keys')
if problem then
  return problem
end
if redis.call('HGET', leaving, KEYS[1]) ~= ARGV[2] then
  return 0
end
for i = 4, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
if redis.call('TYPE', KEYS[1]).ok == ARGV[1] then
  redis.call('UNLINK', KEYS[1])
end
redis.call('ZREM', KEYS[3], KEYS[1])
redis.call('HDEL', leaving, KEYS[1])
return 1
