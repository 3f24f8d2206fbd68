-- Asks for the early end of a lease. The next take of the time shard, or a sweeper, applies it. This
-- script writes no key that a sweeper WATCHes, and runs on a full server.
-- KEYS: mark, history, consumed, dead, released. ARGV: the caller's mark, the id, the lease's token ('':
-- any holder's lease), the due time in ms ('': the old one), 1 if that counts from now, else 0.
-- Returns 1, or 0 if somebody else has taken the message since, or it is consumed or dead.
--@include time_shard
local problem = refuse({ 'hash', 'set', 'zset', 'zset' })
if problem then
  return problem
end
local id = ARGV[2]
local takes, _, due = read_history(redis.call('HGET', KEYS[2], id), KEYS[2])
if unbelieved then
  return unbelieved
end
if not takes or (ARGV[3] ~= '' and ARGV[3] ~= takes) then
  return 0
end
if redis.call('SISMEMBER', KEYS[3], id) == 1 or redis.call('ZSCORE', KEYS[4], id) then
  return 0
end
if ARGV[4] ~= '' then
  due = due_at(ARGV[4], ARGV[5])
end
local entry = takes .. ' ' .. id
-- After a removal a full server allows the rest of the script.
redis.call('ZREM', KEYS[5], entry)
redis.call('ZADD', KEYS[5], due, entry)
return 1
