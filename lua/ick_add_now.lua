-- Adds members to an Ick with the server's time, in seconds with fractions, as their score.
-- KEYS: version, producer set, consumer set. ARGV: members (at most 1,000).
-- Returns { new members, members whose score became lower }.
--@include ick_add_pairs
local clock = redis.call('TIME')
local score, list = string.format('%d.%06d', clock[1], clock[2]), {}
for i, member in ipairs(ARGV) do
  list[2 * i - 1] = score
  list[2 * i] = member
end
return add_pairs(list)
