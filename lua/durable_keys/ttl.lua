-- The source of TTL, PTTL, EXPIRETIME and PEXPIRETIME of a durable key.
--   KEYS[1] key
--   KEYS[2] due index
-- Returns the deadline in ms since the epoch (-1 without one, -2 without a key), and the server's time in ms.
--@include keys
local at = now()
local kind, deadline, problem = look(KEYS[1], KEYS[2], at)
return problem or { kind == 'none' and -2 or deadline or -1, at }
