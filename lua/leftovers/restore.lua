-- Brings a removed key back, and then forgets what was kept of it. If the server refuses the content, it is kept.
-- KEYS: the key, the stream that keeps it. ARGV: for how many ms it lives, 0: for ever; its content, as DUMP gave
-- it; the number of its entry. Returns 1. Errors: the server's about the content.
redis.call('RESTORE', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[3])
return 1
