-- EXPIRE and its three siblings on a whole volatile hash.
--   ARGV[2...] the amount and the condition, as the command itself takes them
-- Returns 1 if the deadline was set, else 0.
--@include volatile_write
--@include volatile
local function expire_hash(command)
  local problem = refuse()
  if problem then
    return problem
  end
  if not has_live() then
    -- All garbage, so nothing is lost; the command itself says what a missing key gets.
    redis.call('UNLINK', hash, deadlines)
    redis.call('ZREM', due, hash)
  end
  local reply = redis.pcall(command, hash, unpack(ARGV, 2))
  if reply ~= 1 then
    return reply
  end
  local left = redis.call('PTTL', hash)
  if left == -2 then
    redis.call('UNLINK', deadlines)
    redis.call('ZREM', due, hash)
  elseif redis.call('EXISTS', deadlines) == 1 then
    -- The server deletes the hash by itself; its deadlines must be found from then on.
    redis.call('ZADD', due, 'LT', string.format('%.0f', now() + left + 1), hash)
  end
  return reply
end
