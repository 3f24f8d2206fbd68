-- DEL hash, for a volatile hash: with its deadlines and its entry in the due index.
-- KEYS: hash, deadlines, due, mark. ARGV: mark. Returns 1 if a field was live, else 0.
--@include delete_hash
return delete_hash('DEL')
