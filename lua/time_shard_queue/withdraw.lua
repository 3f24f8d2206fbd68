-- Asks for the end of the leases of a take by the key of its nonce, for a caller that was interrupted before it
-- had the reply. The take may still be under way; then it will lease nothing.
-- KEYS: mark, history, consumed, dead, released, receipt. ARGV: the caller's mark, how long a take may be under
-- way, in ms. Returns how many leases end.
--@include releasing
local problem = refuse({ 'hash', 'set', 'zset', 'zset', 'string' })
if problem then
  return problem
end
local count = 0
local held = string.match(redis.call('GET', KEYS[6]) or '', '^%d %d+ (.*)$') or ''
for id in string.gmatch(held, '(%S+) %S+') do
  read_history(redis.call('HGET', KEYS[2], id), KEYS[2])
end
if unbelieved then
  return unbelieved
end
for id, takes in string.gmatch(held, '(%S+) (%S+)') do
  if ask_release(id, takes, '', '0') then
    count = count + 1
  end
end
-- The take may still be under way, and a full server would grant it messages. After a removal it allows this.
redis.call('DEL', KEYS[6])
redis.call('SET', KEYS[6], '', 'PX', ARGV[2])
return count
