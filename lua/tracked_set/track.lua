-- Tracks ids of one sub-set. KEYS: ids, state. ARGV: mark, ids. Returns how many are new.
--@include tracked
return refuse() or bump() or call_in_runs('SADD', ids, ARGV, 2)
