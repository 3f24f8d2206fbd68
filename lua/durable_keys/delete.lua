-- DEL key [key ...], for durable keys: with their deadlines.
-- KEYS: key, due index, mark, and so on in threes. ARGV: mark, the command. Returns how many were there.
--@include keys
return delete_all(ARGV[2])
