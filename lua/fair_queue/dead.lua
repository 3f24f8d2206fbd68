-- Shows some of the messages that were set aside.
-- KEYS: meta, due index, layout mark, accounts, rules, ready, messages, leases, held, back, parked, limited,
-- idle, dead, tracking, dedupe, deadlines, notifications, consumers.
-- ARGV: where to go on, how many.
-- Returns { how many there are, where to go on next, { id, attempts, last delivery and end in ms, text }, ... }.
--@include queue
--@include bounded
local problem = refuse_facts(KEYS[1], redis.pcall('HMGET', KEYS[1], 'mark'), true)
if problem then
  return problem
end
local cursor, found = some_of(KEYS[14], ARGV[1], tonumber(ARGV[2]))
local listed = { redis.call('HLEN', KEYS[14]), cursor }
for i = 1, #found, 2 do
  local attempts, delivered, ended, at = string.match(found[i + 1], '^(%d+) (%d+) (%d+) ()')
  if not attempts then
    disbelieve(KEYS[14], 'the message ' .. found[i], found[i + 1], 'a message that was set aside')
    return unbelieved
  end
  listed[#listed + 1] = { found[i], attempts, delivered, ended, string.sub(found[i + 1], at) }
end
return listed
