-- Commits members of a leased ick shard, and then reserves; renews a lease that is half over.
-- KEYS: version, producer set, consumer set, held, attempts, lease, mark. ARGV: how many to
-- reserve (1 or more), 1 for backwash or 0, the reservation's token ('' for none), the lease's token,
-- its time to live in ms, the mark that the lease was taken under, 1 to be told how many members were
-- reserved in place of which, or 0, members to commit.
-- Returns { members committed, token, { member, score, ... } or how many }; nil, with nothing changed, if
-- the lease is not held any more. Nothing is reserved where the mark is newer: the members are to be moved.
--@include ick_reservation
--@include sharded_ick_lease
--@include sharded_ick_mark
local wrong, lease = held_lease(KEYS[6], ARGV[4])
if not lease then
  return wrong or false
end
local unmarked, state = mark_state(KEYS[7], ARGV[6])
local current = unmarked or current_token()
if type(current) == 'table' then
  return current
end
local problem = refuse(true)
if problem then
  return problem
end
if state == 'newer' then
  local committed = commit(current, ARGV[3], 8)
  if committed > 0 then
    extend_if_short(KEYS[6], lease, ARGV[5])
  end
  return { committed, '', ARGV[7] == '1' and 0 or {} }
end
-- As in ick_exchange: a server that is out of memory lets go on what has begun by deleting.
redis.call('DEL', held)
local committed = commit(current, ARGV[3], 8)
extend_if_short(KEYS[6], lease, ARGV[5])
local list = reserve(tonumber(ARGV[1]), ARGV[2] == '1')
local token = hold(current, list)
return { committed, token, ARGV[7] == '1' and #list / 2 or list }
