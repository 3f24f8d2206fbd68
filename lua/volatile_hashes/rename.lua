-- RENAME source destination, for a volatile hash: with its deadlines; the destination is overwritten.
--   KEYS[1] hash of the source
--   KEYS[2] its deadlines
--   KEYS[3] its due index
--   KEYS[4] its mark
--   KEYS[5] hash of the destination
--   KEYS[6] its deadlines
--   KEYS[7] its due index
--   KEYS[8] its mark
--   ARGV[1] mark
-- Returns OK. Errors: no such key, also when no field is live.
--@include two_hashes
local hash, deadlines, due, mark, to_hash, to_deadlines, to_due, to_mark = unpack(KEYS)
local problem = refuse_rename(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, ARGV[1])
if problem then
  return problem
end
if hash ~= to_hash then
  problem = rename_all(hash, deadlines, due, to_hash, to_deadlines, to_due)
end
return problem or redis.status_reply('OK')
