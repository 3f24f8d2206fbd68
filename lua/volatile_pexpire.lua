-- PEXPIRE hash amount [NX | XX | GT | LT], for a whole volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, amount, [condition]. Returns 1 or 0.
--@include expire_hash
return expire_hash('PEXPIRE')
