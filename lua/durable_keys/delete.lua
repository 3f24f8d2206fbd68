-- DEL key [key ...], for durable keys: with their deadlines.
--   KEYS[1..] key, due index and mark of each key
--   ARGV[1] mark
--   ARGV[2] the command, DEL or UNLINK
-- Returns how many were there.
--@include keys
return delete_all(KEYS, ARGV[1], ARGV[2])
