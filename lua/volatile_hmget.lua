-- HMGET hash field [field ...], and HGETEX without an option, for a volatile hash.
-- KEYS: hash, deadlines. ARGV: fields. Returns a list of values, nil for what is missing or expired.
--@include live_values
return live_values(ARGV, now())
