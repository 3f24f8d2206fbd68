-- HINCRBY hash field amount, if the field exists, on a server that expires fields itself.
-- KEYS: hash, [mark]. ARGV: the mark of a native namespace if its mark is given, field, amount, FXX.
-- Returns the new value, a large one as text, nil: no field, or an error reply; then nothing was changed.
--@include increment
--@include layout
if KEYS[2] then
  local problem = refuse_mark(KEYS[2], redis.pcall('GET', KEYS[2]), ARGV[1], 'a layout mark')
  if problem then
    return problem
  end
end
return increment(KEYS[1], ARGV[2], ARGV[3], ARGV[4])
