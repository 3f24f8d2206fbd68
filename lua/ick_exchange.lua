-- Commits members of an Ick, and then reserves.
-- KEYS: version, producer set, consumer set, held, attempts. ARGV: how many to reserve (1 or
-- more), 1 for backwash or 0, the caller's token ('' for none), members to commit.
-- Returns { members committed, token, { member, score, ... } }. Of a caller whose token is not the
-- one that holds nothing is committed.
--@include ick_reservation
-- First what is only read: refuse(true) makes an Ick where there is none.
local current = current_token()
local problem = type(current) == 'table' and current or refuse(true)
if problem then
  return problem
end
-- A server that is out of memory lets a script go on that has begun by deleting something: without
-- that, nobody could work off what fills it.
redis.call('DEL', held)
local committed = commit(current, ARGV[3], 4)
local list = reserve(tonumber(ARGV[1]), ARGV[2] == '1')
return { committed, hold(current, list), list }
