-- Deletes a fair queue that has been idle for its time to live, unless somebody has used it since.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] queue
--   ARGV[2] 1 to delete it whatever the due index says, with its dead messages
--   ARGV[3] ms from now to the next look if messages that were set aside are left
-- Returns how many keys; -1 if somebody has used the queue since, or if it belongs to another namespace: then only its
-- place in this due index goes.
--@include queue
local about = redis.pcall('HMGET', KEYS[META], 'mark', 'namespace')
local problem = refuse_facts(KEYS[META], about)
if problem then
  return problem
end
local is_forced = ARGV[2] == '1'
local due = KEYS[2]
local deadline = redis.pcall('ZSCORE', due, ARGV[1])
if is_error(deadline) then
  return refusal(deadline, due, 'does not hold a due index')
end
if is_elsewhere(about[2], due) then
  if is_forced then
    return elsewhere_error(about[2], due)
  end
  -- The job of the queue's own namespace knows whether it is idle.
  redis.call('ZREM', due, ARGV[1])
  return -1
end
if not is_forced and not (deadline and tonumber(deadline) <= now()) then
  return -1
end
local keeps = not is_forced and redis.call('EXISTS', KEYS[DEAD]) == 1
local deleted = 0
for i = ACCOUNTS, CONSUMERS do
  if not (keeps and i == DEAD) then
    deleted = deleted + redis.call('UNLINK', KEYS[i])
  end
end
if keeps then
  redis.call('HDEL', KEYS[META], 'now', 'rules', 'patterns')
  redis.call('ZADD', due, 'XX', whole(now() + ARGV[3]), ARGV[1])
  return deleted
end
deleted = deleted + redis.call('UNLINK', KEYS[META])
redis.call('ZREM', due, ARGV[1])
return deleted
