-- Gives a lease back: deletes a durable key, if its value is still the holder's token.
-- KEYS: key, due index, mark. ARGV: mark, token. Returns 1 if it was held, else 0.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse_unheld(key, due, mark, ARGV[2], now())
if problem then
  return problem
end
remove(key, due)
return 1
