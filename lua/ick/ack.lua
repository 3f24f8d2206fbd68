-- Acknowledges members of an Ick: removes them from the consumer set.
--   KEYS[1] version
--   KEYS[2] producer set
--   KEYS[3] consumer set
--   KEYS[4] held
--   KEYS[5] attempts
--   ARGV[1] the caller's token ('' for none)
--   ARGV[2..] members
-- Returns how many were removed: none for a caller whose token is not the one that holds.
--@include reservation
local version, pset, cset, held, attempts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local problem = refuse(version, pset, cset, false)
local current = problem or current_token(held, attempts)
if type(current) == 'table' then
  return current
end
local acked = ack(cset, attempts, ARGV, current, ARGV[1], 2)
end_if_done(cset, held, current, acked)
return acked
