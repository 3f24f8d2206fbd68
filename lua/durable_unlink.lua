-- UNLINK key [key ...], for durable keys: with their deadlines.
-- KEYS: key, due index, mark, and so on in threes. ARGV: mark. Returns how many were there.
--@include durable_delete_all
return delete_all('UNLINK')
