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
local indices, woken = {}, nil
for i = 2, #KEYS, 4 do
  indices[#indices + 1] = i
end
problem, woken = with_lines(indices)
if problem then
  return problem
end
wake_all(woken, now(), tonumber(facts[2] or 0), tonumber(facts[3] or 0))
return #woken
