-- Wakes those who wait in groups of a log, for entries that were appended before.
--   KEYS[1] meta
--   KEYS[2..] state, line, turns and granted of each group, as log.lua has them
-- Returns in how many of them there is anybody.
--@include clock
--@include log
local meta = KEYS[1]
local facts = redis.pcall('HMGET', meta, 'mark', 'next', 'first')
local problem = refuse(meta, facts)
if problem then
  return problem
end
local tail = end_of(meta, facts[2], facts[1])
local first = first_of(meta, facts[3], tail, facts[1])
if unbelieved then
  return unbelieved
end
local indices, woken = {}, nil
for i = 2, #KEYS, 4 do
  indices[#indices + 1] = i
end
problem, woken = with_lines(KEYS, indices)
if problem then
  return problem
end
wake_all(KEYS, woken, now(), tail, first)
return #woken
