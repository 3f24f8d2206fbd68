-- Removes ids without work, where a full server has refused the transaction that does it.
-- KEYS: ids, state. ARGV: mark, the generation that was read before ('' for none), ids.
-- Returns how many were removed, or -1 if another writer came first.
--@include tracked
if (redis.call('HGET', state, 'generation') or '') ~= ARGV[2] then
  return -1
end
return call_in_runs('SREM', ids, ARGV, 3)
