-- HEXPIRETIME hash FIELDS n field [field ...], for a volatile hash: seconds since the epoch.
-- KEYS: hash, deadlines, mark. ARGV: mark, FIELDS, n, fields. Returns: see include/field_times.lua.
--@include field_times
return field_times(1000, false)
