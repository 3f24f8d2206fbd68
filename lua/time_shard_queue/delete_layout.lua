-- Notes in the layout of a queue by due time that the queue is being deleted, or removes a layout with that
-- note.
--   KEYS[1] the layout
--   ARGV[1] the time shards that it must name
--   ARGV[2] the period in ms that it must name
--   ARGV[3] 1 to remove it, else 0
-- Returns 1, or 0 if that layout has gone. Errors: WSLAYOUT for a layout that names others.
--@include layout
local found = redis.pcall('HMGET', KEYS[1], 'structure', 'time_shards', 'period_ms', 'dropping')
if found.err then
  return refusal(found, KEYS[1], 'does not hold a layout')
end
if not found[1] and redis.call('EXISTS', KEYS[1]) == 1 then
  return layout_error(KEYS[1], 'does not hold a layout')
end
if not found[1] then
  return 0
end
if found[1] ~= 'time_shard_queue' or found[2] ~= ARGV[1] or found[3] ~= ARGV[2] then
  return layout_error(KEYS[1], 'is the layout of another queue, which was made meanwhile: look at that one, and'
    .. ' call delete() once more if it is to go too')
end
if ARGV[3] == '1' then
  -- Without the note this is a new queue: another process has removed the old one.
  return found[4] and redis.call('DEL', KEYS[1]) or 0
end
-- After a removal a full server allows the rest of the script.
redis.call('HDEL', KEYS[1], 'dropping')
redis.call('HSET', KEYS[1], 'dropping', 1)
return 1
