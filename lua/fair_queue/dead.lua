-- Shows some of the messages that were set aside.
--   KEYS[1..] the keys of the queue, in the order that queue.lua names
--   ARGV[1] where to go on
--   ARGV[2] how many
-- Returns { how many there are, where to go on next, { id, attempts, last delivery and end in ms, text }, ... }.
--@include queue
--@include bounded
local problem = refuse_facts(KEYS[META], redis.pcall('HMGET', KEYS[META], 'mark'), true)
if problem then
  return problem
end
local cursor, found = some_of(KEYS[DEAD], ARGV[1], tonumber(ARGV[2]))
local listed = { redis.call('HLEN', KEYS[DEAD]), cursor }
for i = 1, #found, 2 do
  local attempts, delivered, ended, at = string.match(found[i + 1], '^(%d+) (%d+) (%d+) ()')
  if not attempts then
    disbelieve(KEYS[DEAD], 'the message ' .. found[i], found[i + 1], 'a message that was set aside')
    return unbelieved
  end
  listed[#listed + 1] = { found[i], attempts, delivered, ended, string.sub(found[i + 1], at) }
end
return listed
