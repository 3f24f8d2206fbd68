-- RENAME source destination, for a volatile hash: with its deadlines; the destination is overwritten.
-- KEYS: hash, deadlines, due, mark of the source, then of the destination. ARGV: mark.
-- Returns OK. Errors: no such key, also when no field is live.
--@include two_hashes
local problem = refuse_rename()
if problem then
  return problem
end
if hash ~= to_hash then
  problem = rename_all()
end
return problem or redis.status_reply('OK')
