-- Deletes durable keys whose deadline has passed, with their entries in the due index.
-- KEYS: due index, key, and so on with keys. Returns how many entries were removed.
-- A script, not a WATCH: a new deadline changes only the due index, which many keys share. It deletes and
-- writes nothing, so that a full server lets it.
--@include now
local due, at, removed = KEYS[1], now(), 0
for i = 2, #KEYS do
  local deadline = redis.call('ZSCORE', due, KEYS[i])
  if deadline and tonumber(deadline) <= at then
    -- Whatever else stands there is somebody else's, and only the entry is garbage.
    if redis.call('TYPE', KEYS[i]).ok == 'string' then
      redis.call('UNLINK', KEYS[i])
    end
    redis.call('ZREM', due, KEYS[i])
    removed = removed + 1
  end
end
return removed
