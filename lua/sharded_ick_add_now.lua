-- Adds members to an ick shard with the server's time, in seconds with fractions, as their score.
-- KEYS: version, producer set, consumer set, mark. ARGV: the caller's mark, members (at most 1,000).
-- Returns as sharded_ick_add does.
--@include sharded_ick_add_pairs
local clock = redis.call('TIME')
local score, list = string.format('%d.%06d', clock[1], clock[2]), {}
for i = 2, #ARGV do
  list[#list + 1] = score
  list[#list + 1] = ARGV[i]
end
return add_marked(list)
