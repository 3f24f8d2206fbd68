-- Marks an index shard as native once its due index is empty; no emulated writer may fill it again.
-- KEYS: due, mark. ARGV: the native mark. Returns 1 if it is native now, else 0.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
-- As in layout/change: where memory is full SET alone is refused.
redis.call('UNLINK', KEYS[1])
redis.call('SET', KEYS[2], ARGV[1])
return 1
