-- Removes what is left of a key that has been carried to another node of a fleet, or has expired.
-- KEYS: key, the set of carried keys, due index, deadlines (only of a volatile hash). ARGV: the type of
-- the key; a key of another type is somebody else's and stays. Returns 1.
if KEYS[4] then
  redis.call('UNLINK', KEYS[4])
end
if redis.call('TYPE', KEYS[1]).ok == ARGV[1] then
  redis.call('UNLINK', KEYS[1])
end
redis.call('ZREM', KEYS[3], KEYS[1])
-- It may have come here by an earlier move, and may come again by a later one.
redis.pcall('SREM', KEYS[2], KEYS[1])
return 1
