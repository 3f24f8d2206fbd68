-- Lists dead members of an Ick, piece by piece, for a caller who sorts them.
-- KEYS: version, producer set, consumer set, dead. ARGV: how many at most (1,000), some tens more at times; the cursor to go on
-- from ('0' at the beginning).
-- Returns { how many there are, next cursor ('0' at the end), member, history, ... }; one member may come twice.
--@include ick
--@include bounded
local problem = refuse_grave(false)
if problem then
  return problem
end
local cursor, found = some_of(KEYS[4], ARGV[2], tonumber(ARGV[1]))
local reply = { redis.call('HLEN', KEYS[4]), cursor }
for i = 1, #found do
  reply[i + 2] = found[i]
end
return reply
