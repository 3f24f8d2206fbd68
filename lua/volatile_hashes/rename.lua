-- RENAME source destination, for a volatile hash: with its deadlines; the destination is overwritten.
--   KEYS[1] hash of the source
--   KEYS[2] deadlines of the source
--   KEYS[3] due index of the source
--   KEYS[4] layout mark of the source
--   KEYS[5] hash of the destination
--   KEYS[6] deadlines of the destination
--   KEYS[7] due index of the destination
--   KEYS[8] layout mark of the destination
--   ARGV[1] the mark that the caller expects
-- Returns OK. Errors: no such key, also when no field of the source is live.
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
