-- Commits members of an Ick, and then reserves.
-- KEYS: version, producer set, consumer set, held. ARGV: how many to reserve (1 or more), 1 for
-- backwash or 0, the caller's token ('' for none), members to commit.
-- Returns { members committed, token, { member, score, ... } }. Of a caller whose token is not the
-- one that holds nothing is committed.
--@include ick_reservation
local problem = refuse(true)
local current = problem or current_token()
if type(current) == 'table' then
  return current
end
local committed = commit(current, ARGV[3], 4)
local list = reserve(tonumber(ARGV[1]), ARGV[2] == '1')
return { committed, hold(current, list), list }
