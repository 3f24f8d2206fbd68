-- Forgets entries that a group of a log has set aside, for good.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting, news. ARGV: group, kind, then the offsets.
-- Returns { 0, how many were dead }; and as open_group() does.
--@include group
local problem = open_group()
if problem then
  return problem
end
local count = 0
for i = 3, #ARGV do
  count = count + redis.call('HDEL', dead, ARGV[i])
end
return { 0, count }
