-- Says in the layout of a queue by due time that the queue is being deleted, or removes a layout that
-- says so.
-- KEYS: the layout. ARGV: the time shards and the period in ms that it must say; 1 to remove it, else 0.
-- Returns 1, or 0 if there is no such layout any more. Errors: WSLAYOUT for one that says otherwise.
--@include layout_error
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
  return redis.error_reply('WSLAYOUT the layout ' .. KEYS[1] .. ' is not what it was: somebody else has'
    .. ' made a queue of that name meanwhile')
end
if ARGV[3] == '1' then
  -- Without the note another one was faster, and this is a new queue.
  return found[4] and redis.call('DEL', KEYS[1]) or 0
end
-- A removal first: a server without memory then lets the rest of the script pass.
redis.call('HDEL', KEYS[1], 'dropping')
redis.call('HSET', KEYS[1], 'dropping', 1)
return 1
