-- Looks at a part of what a reservation holds; nobody's lease is asked for.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   ARGV[1] the reservation's token
--   ARGV[2] how many members to pass over
--   ARGV[3] how many to return at most (1,000)
-- Returns { member, score, ... }, the lowest scores first; nil if another reservation holds.
--@include ick
local version, pset, cset = KEYS[1], KEYS[2], KEYS[3]
local problem = refuse(version, pset, cset, false)
if problem then
  return problem
end
local head = redis.pcall('GETRANGE', KEYS[4], 0, #ARGV[1])
if type(head) == 'table' then
  return refusal(head, KEYS[4], 'does not hold the reservation of an Ick')
end
if ARGV[1] == '' or head ~= ARGV[1] .. ' ' then
  return false
end
local first = tonumber(ARGV[2])
return redis.call('ZRANGE', cset, first, first + math.min(ARGV[3], 1000) - 1, 'WITHSCORES')
