-- Acknowledges or deletes messages of a time shard: nobody is given them again. What belongs to them is
-- cleared away later, so that this writes no key that a sweeper WATCHes, and passes without memory.
-- KEYS: mark, messages, consumed. ARGV: the caller's mark, ids.
-- Returns how many were known and not consumed yet.
--@include time_shard
local problem = refuse({ 'hash', 'set' })
if problem then
  return problem
end
local count = 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
    -- A removal first: a server without memory then lets the rest of the script pass.
    local before = redis.call('SREM', KEYS[3], ARGV[i])
    redis.call('SADD', KEYS[3], ARGV[i])
    count = count + 1 - before
  end
end
return count
