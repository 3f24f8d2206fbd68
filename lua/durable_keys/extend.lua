-- Lets a lease end so long from now, if a durable key's value is still the holder's token.
-- KEYS: key, due index, mark. ARGV: mark, token, the length from now on in ms. Returns 1 if it was
-- held, else 0.
--@include keys
local key, due, mark = KEYS[1], KEYS[2], KEYS[3]
local at = now()
local problem, found = refuse_unheld(key, due, mark, ARGV[2], at)
return problem or set_deadline(key, due, mark, found, at + ARGV[3], at) or 1
