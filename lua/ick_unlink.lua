-- Deletes an Ick with all that stands beside it.
-- KEYS: version, producer set, consumer set, held, attempts, seen, dead. Returns how many keys were
-- deleted, 0 if there was no Ick.
--@include ick
local problem, exists = refuse(false)
if problem or not exists then
  return problem or 0
end
return redis.call('UNLINK', unpack(KEYS))
