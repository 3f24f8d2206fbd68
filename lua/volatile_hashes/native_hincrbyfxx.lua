-- HINCRBY hash field amount, if the field exists, on a server that expires fields itself.
--   KEYS[1] hash
--   KEYS[2] mark, or nothing
--   ARGV[1] the mark of a native namespace, if its mark is given
--   ARGV[2] field
--   ARGV[3] amount
--   ARGV[4] FXX
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
