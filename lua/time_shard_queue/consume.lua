-- Acknowledges or cancels messages of a time shard: nobody gets them again. Their parts are cleared
-- away later. So this script writes no key that a sweeper WATCHes, and runs on a full server.
--   KEYS[1] mark
--   KEYS[2] messages
--   KEYS[3] consumed
--   KEYS[4..] receipts of the takes that returned these messages; they are deleted
--   ARGV[1] the caller's mark
--   ARGV[2..] ids
-- Returns how many ids were known and not consumed yet.
--@include time_shard
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'set' })
if problem then
  return problem
end
local count = 0
for i = 2, #ARGV do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 1 then
    -- After a removal a full server allows the rest of the script.
    local before = redis.call('SREM', KEYS[3], ARGV[i])
    redis.call('SADD', KEYS[3], ARGV[i])
    count = count + 1 - before
  end
end
if KEYS[4] then
  redis.call('UNLINK', unpack(KEYS, 4))
end
return count
