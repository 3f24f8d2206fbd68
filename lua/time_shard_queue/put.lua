-- Keeps messages in a time shard; one whose id is known already is left as it is.
-- KEYS: mark, waiting, messages. ARGV: the caller's mark, 1 if the caller has just seen that the layout
-- says the same or else 0, then of each message its id, itself, its due time in ms and 1 if that counts
-- from now, else 0.
-- Returns how many are new; -1 if there is no mark and the layout was not seen: nothing was changed.
--@include time_shard
local problem, marked = refuse({ 'zset', 'hash' })
if problem then
  return problem
end
if not marked then
  -- The server was flushed, or the queue dropped: others may have made it anew, and otherwise.
  if ARGV[2] ~= '1' then
    return -1
  end
  local reply = redis.pcall('SET', KEYS[1], ARGV[1])
  if reply.err then
    return reply
  end
end
local new = 0
for i = 3, #ARGV, 4 do
  local kept = redis.pcall('HSETNX', KEYS[3], ARGV[i], ARGV[i + 1])
  if type(kept) == 'table' then
    -- The first write of the script, so that nothing has been changed; later ones are not refused.
    return kept
  end
  if kept == 1 then
    redis.call('ZADD', KEYS[2], due_at(ARGV[i + 2], ARGV[i + 3]), ARGV[i])
    new = new + 1
  end
end
return new
