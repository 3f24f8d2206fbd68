-- Gives keys that were written just before, in the same transaction, their deadlines.
--   KEYS[1..] the keys; on a cluster there is one
--   ARGV[1] a command that reads the length of a key, and refuses one of another type
--   ARGV[2..] for each key the milliseconds that it lives
-- Returns how many keys have a deadline now.
-- A transaction goes on behind a write that is refused, so it has no bare PEXPIRE: a key of another
-- program would go with the deadline of ours.
local count = 0
for i = 1, #KEYS do
  if type(redis.pcall(ARGV[1], KEYS[i])) == 'number' then
    count = count + redis.call('PEXPIRE', KEYS[i], ARGV[i + 1])
  end
end
return count
