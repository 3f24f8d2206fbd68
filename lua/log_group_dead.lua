-- Lists the entries that a group of a log has set aside, at random if not all are asked for.
-- KEYS: meta, state, line, turns, granted, pending, attempts, dead, revived, waiting. ARGV: group, kind, how many at most.
-- Returns { 0, offset, "<ms of the last delivery> <ms when set aside> <length of the history>:<history><entry>", ... }; and as
-- open_group() does.
--@include log_group
local problem = open_group()
if problem then
  return problem
end
local found = redis.call('HRANDFIELD', dead, ARGV[3], 'WITHVALUES') or {}
local reply = { 0 }
for i = 1, #found do
  reply[i + 1] = found[i]
end
return reply
