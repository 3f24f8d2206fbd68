-- RENAMENX source destination, for a volatile hash: with its deadlines.
--   KEYS[1] hash of the source
--   KEYS[2] its deadlines
--   KEYS[3] its due index
--   KEYS[4] its mark
--   KEYS[5] hash of the destination
--   KEYS[6] its deadlines
--   KEYS[7] its due index
--   KEYS[8] its mark
--   ARGV[1] mark
-- Returns 1, or 0 when something stands at the destination. Errors: no such key.
--@include two_hashes
local hash, deadlines, due, mark, to_hash, to_deadlines, to_due, to_mark = unpack(KEYS)
local problem = refuse_rename(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, ARGV[1])
if problem then
  return problem
end
if hash == to_hash or destination_exists(to_hash, to_deadlines) then
  return 0
end
return rename_all(hash, deadlines, due, to_hash, to_deadlines, to_due) or 1
