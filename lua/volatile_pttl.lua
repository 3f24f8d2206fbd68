-- PTTL hash, for a whole volatile hash.
-- KEYS: hash, deadlines. Returns as the command does; -2 also when no field is live.
--@include volatile
if redis.call('TYPE', hash).ok == 'hash' and not has_live() then
  return -2
end
return redis.pcall('PTTL', hash)
