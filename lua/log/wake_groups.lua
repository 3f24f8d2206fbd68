-- Wakes those who wait in groups of a log, for entries that were appended before.
-- KEYS: meta, then state, line, turns and granted of each group, as log.lua has them. ARGV: nothing.
-- Returns in how many of them there is anybody.
--@include clock
--@include log
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first')
local problem = refuse(facts)
if problem then
  return problem
end
local tail = end_of(facts[2], facts[1])
local first = first_of(facts[3], tail, facts[1])
if unbelieved then
  return unbelieved
end
local indices, woken = {}, nil
for i = 2, #KEYS, 4 do
  indices[#indices + 1] = i
end
problem, woken = with_lines(indices)
if problem then
  return problem
end
wake_all(woken, now(), tail, first)
return #woken
