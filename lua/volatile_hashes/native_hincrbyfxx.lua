-- HINCRBY hash field amount, if the field exists, on a server that expires fields itself.
-- KEYS: hash. ARGV: field, amount, FXX. Returns the new value, a large one as text, or nil: no field.
--@include increment
return increment(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
