-- Gives a lease back by the nonce that it was asked for with, by a caller that does not know the token.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   KEYS[4] grant
--   KEYS[5] withdrawn
--   ARGV[1] mark
--   ARGV[2] nonce
-- Returns 1 if it was held, else 0.
--@include keys
--@include grant
local key, due, mark, grant, withdrawn = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local at, held = now(), 0
local problem, kind, _, found = refuse(key, due, mark, ARGV[1], at)
local wrong, token = token_of(grant, ARGV[2])
if problem or wrong then
  return problem or wrong
end
if kind == 'string' and token and token == redis.call('GET', key) then
  remove(key, due)
  remove(grant, due)
  held = 1
end
-- The call that asks for it may still be under way, on a connection that its caller has closed. After a removal
-- a full server allows the rest of the script.
redis.call('ZREM', due, withdrawn)
problem = schedule(withdrawn, due, mark, ARGV[1], found, at + UNDER_WAY_MS)
if problem then
  return problem
end
redis.call('SET', withdrawn, '')
return held
