-- Acknowledges members of a leased ick shard, and then reserves, or begins to; extends a lease that is half over.
-- KEYS: version, producer set, consumer set, held, attempts, lease, mark, waiting, terms. ARGV: how many to
-- reserve, 1 for backwash or 0, the reservation's token ('' for none), the lease's token, its time to
-- live in ms, the mark that the lease was taken under, 1 to be told only how many members were
-- reserved, or 0, members to acknowledge (at most 1,000).
-- Returns { members acknowledged, token ('' if there is no new reservation), the text that is held, or '', how
-- many members it lists, what is left to be done ('' for nothing, else for sharded_ick/reserve_on) }; nil,
-- with nothing changed, if the lease is not held any more. Nothing is reserved where the mark is newer: the
-- members are to be moved.
-- Without anything to reserve, backwash puts back all that is reserved, unless the caller has a token that
-- does not hold any more.
--@include reservation
--@include shard
local version, pset, cset, held, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wrong, lease = held_lease(KEYS[6], ARGV[4])
if not lease then
  return wrong or false
end
local unmarked, state = mark_state(KEYS[7], ARGV[6])
local current = unmarked or current_token(held, attempts)
if type(current) == 'table' then
  return current
end
local waiting, terms = KEYS[8], KEYS[9]
local waits = count_waiting(waiting, terms)
local problem = type(waits) == 'table' and waits or refuse(version, pset, cset, true)
if problem then
  return problem
end
local n, backwash, token = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
local is_late = token ~= '' and current ~= '' and token ~= current
if state == 'newer' or n == 0 and (not backwash or is_late) then
  local acked = ack(cset, attempts, ARGV, current, token, 8)
  if acked > 0 then
    extend_if_short(KEYS[6], lease, ARGV[5])
  end
  return { acked, '', '', 0, '' }
end
-- As in ick/exchange: a server that is out of memory lets go on what has begun by deleting.
redis.call('DEL', held)
local acked = ack(cset, attempts, ARGV, current, token, 8)
extend_if_short(KEYS[6], lease, ARGV[5])
local new, text, size, left = reserve(pset, cset, held, current, n, backwash, waits, waiting, terms)
return { acked, new, ARGV[7] == '1' and '' or text, size, left }
