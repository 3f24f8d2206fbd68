-- Reads a key that moves to another node of a fleet; nobody writes it here any more.
--   KEYS[1] key
--   KEYS[2] the tokens of leaving keys
--   KEYS[3] due index
--   KEYS[4] the leases on the fields of a volatile hash
--   KEYS[5] its deadlines, if they are kept here
--   ARGV[1] the type of the key
-- Returns its dump, when it ends as a whole, its score in the due index, the dump of its deadlines ('' for
-- none), and its token, times in ms; nil if there is none or it has expired: then what is left of it is
-- removed. Expired fields are deleted, so that a clock that is behind does not bring them back. A
-- key keeps its token until this node drops the key; if somebody writes it here again, the key gets
-- another token. Leases end, or a result would be stored here behind an invalidate() at the new
-- home.
--@include clock
--@include bounded
--@include layout
local key, leaving, due, leases, deadlines = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse_key('HLEN', leaving, 'the tokens of leaving keys')
  or leases and refuse_key('HLEN', leases, 'the leases of a volatile hash')
if problem then
  return problem
end
if leases and redis.call('EXISTS', leases) == 1 then
  redis.call('UNLINK', leases)
end

-- Removes what is left of a key that is not here, or is garbage. One of another type is somebody else's. A
-- server that takes no writes now is asked for none where nothing is left.
local function tidy(is_ours)
  if deadlines and redis.call('EXISTS', deadlines) == 1 then
    redis.call('UNLINK', deadlines)
  end
  if is_ours then
    redis.call('UNLINK', key)
  end
  if redis.call('ZSCORE', due, key) then
    redis.call('ZREM', due, key)
  end
  if redis.call('HEXISTS', leaving, key) == 1 then
    redis.call('HDEL', leaving, key)
  end
  return false
end

if redis.call('TYPE', key).ok ~= ARGV[1] then
  return tidy(false)
end
local at = now()
if deadlines then
  local past = redis.call('ZRANGEBYSCORE', deadlines, '-inf', string.format('%.0f', at))
  if #past > 0 then
    call_in_runs('HDEL', key, past, 1)
    call_in_runs('ZREM', deadlines, past, 1)
    if redis.call('EXISTS', key) == 0 then
      return tidy(true)
    end
  end
end
local listed = redis.call('ZSCORE', due, key) or ''
if not deadlines and listed ~= '' and tonumber(listed) <= at then
  return tidy(true)
end
local token = redis.call('HGET', leaving, key)
if not token then
  local clock = redis.call('TIME')
  token = string.format('%.0f%06d', clock[1], clock[2])
  -- As in layout/change: where memory is full HSET alone is refused.
  redis.call('HDEL', leaving, key)
  redis.call('HSET', leaving, key, token)
end
local left = redis.call('PTTL', key)
local ends = left >= 0 and string.format('%.0f', at + left) or ''
local beside = deadlines and redis.call('DUMP', deadlines) or ''
return { redis.call('DUMP', key), ends, listed, beside, token }
