-- Commits members of an Ick: removes them from the consumer set.
-- KEYS: version, producer set, consumer set, held. ARGV: the caller's token ('' for none), members.
-- Returns how many were removed: none for a caller whose token is not the one that holds.
--@include ick_reservation
local problem = refuse(false)
local current = problem or current_token()
if type(current) == 'table' then
  return current
end
return commit(current, ARGV[1], 2)
