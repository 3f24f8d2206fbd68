-- Lists dead members of an Ick, piece by piece, for a caller who sorts them.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] dead
--   ARGV[1] the most to return: the client gives 1,000; the reply may have some tens more
--   ARGV[2] the cursor to go on from ('0' at the beginning)
-- Returns { how many there are, next cursor ('0' at the end), member, history, ... }; one member may come
-- twice.
--@include ick
--@include bounded
local version, pset, cset, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local problem = refuse_grave(version, pset, cset, dead, false)
if problem then
  return problem
end
local cursor, found = some_of(dead, ARGV[2], tonumber(ARGV[1]))
local reply = { redis.call('HLEN', dead), cursor }
for i = 1, #found do
  reply[i + 2] = found[i]
end
return reply
