-- Gives a lease back: deletes a durable key, if its value is still the holder's token.
--   KEYS[1] key
--   KEYS[2] due index
--   KEYS[3] mark
--   KEYS[4] grant
--   ARGV[1] mark
--   ARGV[2] token
-- Returns 1 if it was held, else 0.
--@include keys
--@include grant
local key, due, mark, grant = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse_unheld(key, due, mark, ARGV[1], ARGV[2], now()) or (token_of(grant, ''))
if problem then
  return problem
end
remove(key, due)
remove(grant, due)
return 1
