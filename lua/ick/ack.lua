-- Acknowledges members of an Ick: removes them from the consumer set.
-- KEYS: version, producer set, consumer set, held, attempts. ARGV: the caller's token ('' for none),
-- members. Returns how many were removed: none for a caller whose token is not the one that holds.
--@include reservation
local problem = refuse(false)
local current = problem or current_token()
if type(current) == 'table' then
  return current
end
local acked = ack(current, ARGV[1], 2)
end_if_done(current, acked)
return acked
