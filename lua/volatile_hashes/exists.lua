-- EXISTS hash, for a volatile hash: 1 if any field is live, else 0.
-- KEYS: hash, deadlines. Returns a number; another type at the key counts as Redis counts it.
--@include hash
if redis.call('TYPE', hash).ok == 'hash' then
  return has_live() and 1 or 0
end
return redis.call('EXISTS', hash)
