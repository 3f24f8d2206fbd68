-- COPY source destination [REPLACE], for a volatile hash: with its deadlines.
-- KEYS: hash, deadlines, due, mark of the source, then of the destination. ARGV: mark, [REPLACE].
-- Returns 1, or 0 when no field is live or something stands at the destination.
--@include two_hashes
local problem = refuse_either()
if problem then
  return problem
end
if hash == to_hash then
  return redis.error_reply('ERR source and destination objects are the same')
end
if not has_live() or (ARGV[2] ~= 'REPLACE' and destination_exists()) then
  return 0
end
problem = schedule_destination()
if problem then
  return problem
end
redis.call('COPY', hash, to_hash, 'REPLACE')
if redis.call('COPY', deadlines, to_deadlines, 'REPLACE') == 0 then
  redis.call('UNLINK', to_deadlines)
  redis.call('ZREM', to_due, to_hash)
end
return 1
