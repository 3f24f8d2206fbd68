-- RENAMENX source destination, for a volatile hash: with its deadlines.
-- KEYS: hash, deadlines, due, mark of the source, then of the destination. ARGV: mark.
-- Returns 1, or 0 when something stands at the destination. Errors: no such key.
--@include two_hashes
local problem = refuse_rename()
if problem then
  return problem
end
if hash == to_hash or destination_exists() then
  return 0
end
return rename_all() or 1
