-- HEXPIRE hash amount [NX | XX | GT | LT] FIELDS n field [field ...], for a volatile hash.
-- KEYS: hash, deadlines, due, mark. ARGV: mark, amount (seconds from now), [condition], FIELDS, n, fields.
-- Returns: see include/expire_fields.lua.
--@include expire_fields
return expire_fields('hexpire', 1000, true)
