-- Commits members of an Ick: removes them from the consumer set.
-- KEYS: version, producer set, consumer set, held, attempts. ARGV: the caller's token ('' for none),
-- members. Returns how many were removed: none for a caller whose token is not the one that holds.
--@include ick_reservation
local problem = refuse(false)
local current = problem or current_token()
if type(current) == 'table' then
  return current
end
local committed = commit(current, ARGV[1], 2)
if committed > 0 and current ~= '' and redis.call('EXISTS', cset) == 0 then
  -- It is done with. A client without tokens may reserve the same members from now on.
  redis.call('SET', held, redis.call('GETRANGE', held, 0, HELD_HEAD - 1))
end
return committed
