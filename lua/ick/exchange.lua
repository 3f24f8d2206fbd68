-- Acknowledges members of an Ick, and then reserves members; a large reservation is only begun.
-- KEYS: version, producer set, consumer set, held, attempts, waiting, terms. ARGV: how many to reserve, 1 for
-- backwash or 0, the caller's token ('' for none), members to acknowledge (at most 1,000).
-- Returns { members acknowledged, token ('' if there is no new reservation), the text that is held, how many
-- members it lists, what is left to be done ('' for nothing, else for ick/reserve_on) }. If the
-- caller's token is not the present reservation's, nothing is acknowledged. Without anything to
-- reserve, backwash puts back what the caller holds: all that is reserved, unless the caller's
-- token is a former one.
--@include reservation
-- First what is only read: refuse(true) makes an Ick where there is none.
local version, pset, cset, held, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local waiting, terms = KEYS[6], KEYS[7]
local current, waits = current_token(held, attempts), count_waiting(waiting, terms)
local problem = type(current) == 'table' and current
  or type(waits) == 'table' and waits
  or refuse(version, pset, cset, true)
if problem then
  return problem
end
local n, backwash, token = tonumber(ARGV[1]), ARGV[2] == '1', ARGV[3]
if n == 0 then
  local acked = ack(cset, attempts, ARGV, current, token, 4)
  local is_late = token ~= '' and current ~= '' and token ~= current
  if not backwash or is_late or redis.call('EXISTS', cset) == 0 then
    return { acked, '', '', 0, '' }
  end
  redis.call('DEL', held)
  local new, text, size, left = reserve(pset, cset, held, current, 0, true, 0)
  return { acked, new, text, size, left }
end
-- A server that is out of memory lets a script go on that has begun by deleting something: without
-- that, nobody could work off what fills it.
redis.call('DEL', held)
local acked = ack(cset, attempts, ARGV, current, token, 4)
local new, text, size, left = reserve(pset, cset, held, current, n, backwash, waits, waiting, terms)
return { acked, new, text, size, left }
