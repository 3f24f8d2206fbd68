-- Reads a key that moves to another node of a fleet; nobody writes it here any more.
-- KEYS: key, due index, deadlines (of a volatile hash whose deadlines are kept here). ARGV: the type
-- of the key. Returns its dump, when it ends as a whole, its score in the due index and the dump of
-- its deadlines ('' for none), times in ms; nil if there is none or it has expired. Expired fields
-- are deleted, so that a clock that is behind does not bring them back.
--@include clock
--@include bounded
local key, due, deadlines = KEYS[1], KEYS[2], KEYS[3]
if redis.call('TYPE', key).ok ~= ARGV[1] then
  return false
end
local at = now()
if deadlines then
  local past = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', at))
  if #past > 0 then
    call_in_runs('HDEL', key, past, 1)
    call_in_runs('ZREM', deadlines, past, 1)
    if redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', due, key)
      return false
    end
  end
end
local listed = redis.call('ZSCORE', due, key) or ''
if not deadlines and listed ~= '' and tonumber(listed) <= at then
  return false
end
local left = redis.call('PTTL', key)
local ends = left >= 0 and string.format('%.0f', at + left) or ''
local beside = deadlines and redis.call('DUMP', deadlines) or ''
return { redis.call('DUMP', key), ends, listed, beside }
