-- EXPIRE hash amount [NX | XX | GT | LT], and its siblings, for a whole volatile hash.
--   KEYS[1] hash
--   KEYS[2] deadlines
--   KEYS[3] due
--   KEYS[4] mark
--   ARGV[1] mark
--   ARGV[2] the command
--   ARGV[3] the ms of its unit
--   ARGV[4] 1 if the amount is from now, else 0
--   ARGV[5] the amount
--   ARGV[6..] the conditions as the command takes them
-- Returns 1 or 0. Redis 6.2 has no conditions, and takes an amount beyond 64 bits for a moment that is past:
-- it deletes the key. So both are judged here, and the server is given what every version understands.
--@include hash
--@include conditions
local hash, deadlines, due, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local MOST_SECONDS = 9223372036854775 -- beyond it they have no milliseconds in 64 bits
local unit_ms, is_relative, amount = tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5]
local is, problem = read_conditions(ARGV, 6)
if not is then
  return problem
end
if not is_integer(amount) then
  return redis.error_reply('ERR value is not an integer or out of range')
end
local number = tonumber(amount)
local wanted = number * unit_ms + (is_relative and server_ms() or 0)
if (unit_ms > 1 and math.abs(number) > MOST_SECONDS) or (is_relative and wanted >= 2 ^ 63) then
  local command = string.lower(ARGV[2])
  return redis.error_reply("ERR invalid expire time in '" .. command .. "' command")
end
problem = refuse(hash, deadlines, due, mark, ARGV[1])
if problem then
  return problem
end
if not has_live(hash, deadlines) then
  -- All garbage, so nothing is lost; a missing key gets 0.
  redis.call('UNLINK', hash, deadlines)
  redis.call('ZREM', due, hash)
  return 0
end
if next(is) then
  local ends = end_of_hash(hash, 'PEXPIRETIME')
  if not is_met(is, ends >= 0 and ends or nil, wanted) then
    return 0
  end
end
local reply = redis.pcall(ARGV[2], hash, amount)
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
