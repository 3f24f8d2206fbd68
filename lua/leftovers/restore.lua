-- Brings a removed key back, and then forgets what was kept of it. If the server refuses the content, it is
-- kept.
--   KEYS[1] the key
--   KEYS[2] the stream that keeps it
--   ARGV[1] for how many ms it lives, 0: for ever
--   ARGV[2] its content, as DUMP gave it
--   ARGV[3] the number of its entry
-- Returns 1. Errors: the server's about the content.
redis.call('RESTORE', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[3])
return 1
