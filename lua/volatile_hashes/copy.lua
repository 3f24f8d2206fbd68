-- COPY source destination [REPLACE], for a volatile hash: with its deadlines.
--   KEYS[1] hash of the source
--   KEYS[2] deadlines of the source
--   KEYS[3] due index of the source
--   KEYS[4] layout mark of the source
--   KEYS[5] hash of the destination
--   KEYS[6] deadlines of the destination
--   KEYS[7] due index of the destination
--   KEYS[8] layout mark of the destination
--   ARGV[1] the mark that the caller expects
--   ARGV[2] REPLACE, or nothing
-- Returns 1; 0 when no field of the source is live, or when, without REPLACE, the destination
-- exists.
--@include two_hashes
local hash, deadlines, due, mark, to_hash, to_deadlines, to_due, to_mark = unpack(KEYS)
local problem = refuse_either(hash, deadlines, due, mark, to_deadlines, to_due, to_mark, ARGV[1])
if problem then
  return problem
end
if hash == to_hash then
  return redis.error_reply('ERR source and destination objects are the same')
end
if not has_live(hash, deadlines) or (ARGV[2] ~= 'REPLACE' and destination_exists(to_hash, to_deadlines)) then
  return 0
end
problem = schedule_destination(hash, due, to_hash, to_due)
if problem then
  return problem
end
redis.call('COPY', hash, to_hash, 'REPLACE')
if redis.call('COPY', deadlines, to_deadlines, 'REPLACE') == 0 then
  redis.call('UNLINK', to_deadlines)
  redis.call('ZREM', to_due, to_hash)
end
return 1
