-- EXPIRE hash amount [NX | XX | GT | LT], and its siblings, for a whole volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, the command, amount, [condition]. Returns 1 or 0.
--@include hash
local problem = refuse()
if problem then
  return problem
end
if not has_live() then
  -- All garbage, so nothing is lost; the command itself says what a missing key gets.
  redis.call('UNLINK', hash, deadlines)
  redis.call('ZREM', due, hash)
end
local reply = redis.pcall(ARGV[2], hash, unpack(ARGV, 3))
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
