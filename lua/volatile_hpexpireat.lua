-- HPEXPIREAT hash amount [NX | XX | GT | LT] FIELDS n field [field ...], for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, amount (milliseconds since the epoch), [condition], FIELDS, n, fields.
-- Returns: see include/expire_fields.lua.
--@include expire_fields
return expire_fields('hpexpireat', 1, false)
