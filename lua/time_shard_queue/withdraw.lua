-- Asks for the end of the leases of a take by the key of its nonce, for a caller that was interrupted before
-- it had the reply. The take may still be under way; then it will lease nothing.
--   KEYS[1] mark
--   KEYS[2] history
--   KEYS[3] consumed
--   KEYS[4] dead
--   KEYS[5] released
--   KEYS[6] notifications
--   KEYS[7] receipt
--   ARGV[1] the caller's mark
--   ARGV[2] how long a take may be under way, in ms
-- Returns how many leases end.
--@include releasing
local _, history, consumed, dead, released, notifications, receipt = unpack(KEYS)
local problem = refuse(KEYS[1], ARGV[1], KEYS, { 'hash', 'set', 'zset', 'zset', 'stream', 'string' })
if problem then
  return problem
end
local count = 0
local held = string.match(redis.call('GET', receipt) or '', '^%d %d+ (.*)$') or ''
for id in string.gmatch(held, '(%S+) %S+') do
  read_history(redis.call('HGET', history, id), history)
end
if unbelieved then
  return unbelieved
end
for id, takes in string.gmatch(held, '(%S+) (%S+)') do
  if ask_release(history, consumed, dead, released, notifications, id, takes, '', '0') then
    count = count + 1
  end
end
-- The take may still be under way, and a full server would grant it messages. After a removal it allows this.
redis.call('DEL', receipt)
redis.call('SET', receipt, '', 'PX', ARGV[2])
return count
